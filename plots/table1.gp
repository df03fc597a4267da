# Table 1: the error of each attention on each test set, on a logarithmic axis. A point is the median over the seeds (their
# pooled error where the median is 0), the bar reaches from the lowest to the highest end of their 95 % intervals (a decade
# down where that is 0). Where no run erred, an arrow hangs from the upper end of the pooled counts' interval. A cross is
# the published value, if there is one above 0. Reads summary.csv and the file `published`.
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
seen(i) = mine(i) && column('errors') > 0 ? x(i) : NaN
unseen(i) = mine(i) && column('errors') == 0 ? x(i) : NaN
middle(i) = 100 * (column('error_median') > 0 ? column('error_median') : column('error'))
low(i) = column('reach_low') > 0 ? 100 * column('reach_low') : middle(i) / 10

known_set(set) = nth(sets, set) > 0 && column('error_percent') > 0
beside(i) = mine(i) && known_set(strcol('set')) ? x(i) - 0.2 / words(attentions) : NaN
others = strlen(published) ? published : '/dev/null'
plot for [i=1:words(attentions)] data \
        using (seen(i)):(middle(i)):(low(i)):(100 * column('reach_high')) with yerrorbars \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) title title(word(attentions, i)), \
    for [i=1:words(attentions)] data \
        using (unseen(i)):(100 * column('error_high')):(0):(-column('error_high') * 50) \
        with vectors size 0.03, 20 filled lw 1.5 lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data using (unseen(i)):(100 * column('error_high')):('0') \
        with labels offset 0, 0.7 font ',10' tc rgb colour(word(attentions, i)) notitle, \
    for [i=1:strlen(published) ? words(attentions) : 0] others using (beside(i)):(column('error_percent')) with points \
        pt 2 ps 0.9 lc rgb '#444444' title (i == 1 ? 'published' : '')
