# Figure 2, bottom: the fewest layers that reach the goal, against the length of the word. Points are seeds, lines join
# their means; a point on the top line (> max) is a climb that failed at every depth.
# Reads: min_layers.csv task.seq_len model.attention model.layers best
load scripts.'/style.gp'
data = folder.'/min_layers.csv'
set datafile missing NaN # rows of others, and of climbs that go on, do not break a line

found = ''
most = 0
low = 1e9
high = 0
depth(text) = int(text[1:1] eq '>' ? text[3:*] : text)
note_length(length) = (low = length < low ? length : low, high = length > high ? length : high, 0)
note_most(text) = (most = strlen(text) && depth(text) > most ? depth(text) : most, 0)
set table $unused
plot [-1:1] [-1:1] data using (note(strcol('task.seq_len')) + note_length(column('task.seq_len'))):(note_most(strcol('model.layers')))
lengths = found
found = ''
plot [-1:1] [-1:1] data using (note(strcol('model.attention'))):(0)
unset table
attentions = found

set xlabel 'length of the word'
set ylabel 'fewest layers'
margin = 0.05 * (high - low) + 0.3
set xrange [low - margin:high + margin]
set yrange [0.5:most + 1.5]
set xtics ()
set for [length in lengths] xtics add (length real(length))
set ytics 1
set ytics add (sprintf('> %d', most) most + 1)
set arrow 1 from graph 0, first most + 0.5 to graph 1, first most + 0.5 nohead dt 3 lc rgb '#888888'

mine(i) = strcol('model.attention') eq word(attentions, i) && column('best') == 1 && strlen(strcol('model.layers')) > 0
layers(text) = text[1:1] eq '>' ? most + 1 : real(text)
x(i) = mine(i) ? column('task.seq_len') + aside(i, words(attentions), 0.15) : NaN
y(i) = mine(i) ? layers(strcol('model.layers')) + aside(i, words(attentions), 0.07) : NaN
plot for [i=1:words(attentions)] data using (x(i)):(y(i)) smooth unique with lines \
        lw 1.5 dt dash(word(attentions, i)) lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data using (x(i)):(y(i)) with points \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] keyentry with linespoints \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 dt dash(word(attentions, i)) lc rgb colour(word(attentions, i)) \
        title title(word(attentions, i))
