# Table 1: the error of each attention on each test set, on a logarithmic axis. A point is the median over the seeds, the
# bar reaches from the lowest to the highest end of their 95 % intervals. A 0 with an arrow is a median of 0: it hangs from
# the upper end of the interval of no error among all the seeds' positions. A cross is the published value, if there is
# one above 0.
# Reads: summary.csv attention set
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

nth(list, name) = sum [i=1:words(list)] (word(list, i) eq name ? i : 0)
place(set, i) = nth(sets, set) + aside(i, words(attentions), 0.7 / words(attentions))

set logscale y
set format y '%g'
set ylabel 'error, %'
set xrange [0.5:words(sets) + 0.5]
set yrange [*<0.001:200]
set xtics () scale 0
set for [i=1:words(sets)] xtics add (word(sets, i) i)
set for [i=2:words(sets)] arrow i from i - 0.5, graph 0 to i - 0.5, graph 1 nohead lc rgb '#dddddd' back

mine(i) = strcol('attention') eq word(attentions, i)
x(i) = place(strcol('set'), i)
median = 'error_median'
at(i, wanted) = mine(i) && wanted ? x(i) : NaN
# Where a median of 0 stands: at the upper end of the interval of no error among as many positions.
zero(scored) = 100 * 3.69 / scored
hanging(value, scored) = value > 0 ? 100 * value : zero(scored)
middle(i) = hanging(column(median), column('scored'))
low(i) = hanging(column('reach_low'), column('scored'))

known_set(set) = nth(sets, set) > 0 && column('error_percent') > 0
beside(i) = mine(i) && known_set(strcol('set')) ? x(i) - 0.2 / words(attentions) : NaN
crosses = ", for [i=1:words(attentions)] published using (beside(i)):(column('error_percent')) with points ".\
    "pt 2 ps 0.9 lc rgb '#444444' title (i == 1 ? 'published' : '')"
others = strlen(published) ? crosses : ''
plot for [i=1:words(attentions)] data \
        using (at(i, column('errors') > 0)):(middle(i)):(low(i)):(100 * column('reach_high')) with yerrorbars \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) title title(word(attentions, i)), \
    for [i=1:words(attentions)] data using (at(i, column('errors') == 0)):(zero(column('scored'))) with points \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data \
        using (at(i, column(median) == 0)):(zero(column('scored'))):(0):(-0.6 * zero(column('scored'))) with vectors \
        size 0.03, 20 filled lw 1.5 lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data using (at(i, column(median) == 0)):(zero(column('scored'))):('0') \
        with labels offset 1.1, 0 font ',10' tc rgb colour(word(attentions, i)) notitle @others
