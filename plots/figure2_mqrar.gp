# Figure 2, top: accuracy against N. Lines join the medians over the seeds; bars reach from the worst to the best seed.
# Reads: summary.csv attention task.n_back
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
set xrange [*:*] noextend
set xtics 1
set offsets graph 0.05, graph 0.05, 0, 0

mine(i) = strcol('attention') eq word(attentions, i)
x(i) = mine(i) ? column('task.n_back') + aside(i, words(attentions), 0.04) : NaN
accuracy(error) = 100 * (1 - column(error))
plot for [i=1:words(attentions)] data using (x(i)):(accuracy('error_median')) with linespoints \
        pt shape(word(attentions, i)) ps 1.2 lw 1.5 dt dash(word(attentions, i)) lc rgb colour(word(attentions, i)) \
        title title(word(attentions, i)), \
    for [i=1:words(attentions)] data \
        using (x(i)):(accuracy('error_median')):(accuracy('error_max')):(accuracy('error_min')) with yerrorbars \
        pt shape(word(attentions, i)) ps 1.2 lw 1.5 lc rgb colour(word(attentions, i)) notitle
