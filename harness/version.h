/* The version of the program, as git describes it. */
#ifndef STATELAB_HARNESS_VERSION_H
#define STATELAB_HARNESS_VERSION_H

extern const char statelab_version[];

#endif
