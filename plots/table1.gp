# Table 1: the error of each attention on each test set, on a logarithmic axis. A filled or open point is the median over
# the seeds, the bar the 95 % interval of the pooled counts. Where no error was seen, an arrow hangs from the interval's
# upper end. Reads summary.csv.
load scripts.'/style.gp'
data = folder.'/summary.csv'

found = ''
set table $unused
plot [-1:1] [-1:1] data using (note(strcol('attention'))):(0)
attentions = found
found = ''
plot [-1:1] [-1:1] data using (note(strcol('set'))):(0)
sets = found
unset table

place(set) = sum [i=1:words(sets)] (word(sets, i) eq set ? i : 0)
offset(i) = 0.7 * ((i - 0.5) / words(attentions) - 0.5)
percent(x) = x > 0 ? 100 * x : NaN

set logscale y
set format y '%g'
set ylabel 'error, %'
set xrange [0.5:words(sets) + 0.5]
set yrange [*<0.001:200]
set xtics () scale 0
set for [i=1:words(sets)] xtics add (word(sets, i) i)
set for [i=2:words(sets)] arrow i from i - 0.5, graph 0 to i - 0.5, graph 1 nohead lc rgb '#dddddd' back

mine(i) = strcol('attention') eq word(attentions, i)
x(i) = place(strcol('set')) + offset(i)
seen(i) = mine(i) && column('errors') > 0
middle(i) = column('error_median') > 0 ? column('error_median') : column('error')
plot for [i=1:words(attentions)] data \
        using (seen(i) ? x(i) : NaN):(percent(middle(i))):(percent(column('error_low'))):(percent(column('error_high'))) \
        with yerrorbars pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) \
        title title(word(attentions, i)), \
    for [i=1:words(attentions)] data \
        using (mine(i) && column('errors') == 0 ? x(i) : NaN):(percent(column('error_high'))):(0):(-column('error_high') * 50) \
        with vectors size 0.03, 20 filled lw 1.5 lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data \
        using (mine(i) && column('errors') == 0 ? x(i) : NaN):(percent(column('error_high'))):('0') \
        with labels offset 0, 0.7 font ',10' tc rgb colour(word(attentions, i)) notitle
