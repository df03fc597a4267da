/* The commands of the program: each reads its own arguments (argv[0] is its name) and returns the exit status:
 * 0 all done, 1 some runs failed, 2 bad input, 130 interrupted. */
#ifndef STATELAB_HARNESS_COMMANDS_H
#define STATELAB_HARNESS_COMMANDS_H

int command_run(int argc, char **argv);
int command_worker(int argc, char **argv);
int command_slurm(int argc, char **argv);
int command_status(int argc, char **argv);
int command_report(int argc, char **argv);
int command_plot(int argc, char **argv);
int command_export(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_tasks(int argc, char **argv);
int command_attentions(int argc, char **argv);
int command_keys(int argc, char **argv);

#endif
