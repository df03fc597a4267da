# Figure 2, top: accuracy against N. Lines join the medians over the seeds; bars reach from the worst to the best seed.
# Reads summary.csv.
load scripts.'/style.gp'
data = folder.'/summary.csv'

found = ''
set table $unused
plot [-1:1] [-1:1] data using (note(strcol('attention'))):(0)
unset table
attentions = found

set xlabel 'N (assignments back)'
set ylabel 'accuracy, %'
set yrange [0:102]
set xtics 1
set offsets 0.2, 0.2, 0, 0

mine(i) = strcol('attention') eq word(attentions, i)
x(i) = mine(i) ? column('task.n_back') + 0.03 * (i - 0.5 * (words(attentions) + 1)) : NaN
accuracy(error) = 100 * (1 - column(error))
plot for [i=1:words(attentions)] data using (x(i)):(accuracy('error_median')) with lines \
        lw 1.5 dt dash(word(attentions, i)) lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data \
        using (x(i)):(accuracy('error_median')):(accuracy('error_max')):(accuracy('error_min')) with yerrorbars \
        pt shape(word(attentions, i)) ps 1.2 lw 1.5 lc rgb colour(word(attentions, i)) title title(word(attentions, i))
