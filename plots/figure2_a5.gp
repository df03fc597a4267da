# Figure 2, bottom: the fewest layers that reach the goal, against the length of the word. Points are seeds, lines their
# mean; a point on the top line (> max) is a climb that failed at every depth. Reads min_layers.csv.
load scripts.'/style.gp'
data = folder.'/min_layers.csv'

found = ''
most = 0
note_most(text) = (most = int(text[1:1] eq '>' ? text[3:*] : text) > most ? int(text[1:1] eq '>' ? text[3:*] : text) : most, 0)
set table $unused
plot [-1:1] [-1:1] data using (note(strcol('model.attention'))):(0)
plot [-1:1] [-1:1] data using (strlen(strcol('model.layers')) ? note_most(strcol('model.layers')) : 0):(0)
unset table
attentions = found

set xlabel 'length of the word'
set ylabel 'fewest layers'
set yrange [0.5:most + 1.5]
set ytics 1
set ytics add (sprintf('> %d', most) most + 1)
set offsets 1, 1, 0, 0
set arrow 1 from graph 0, first most + 0.5 to graph 1, first most + 0.5 nohead dt 3 lc rgb '#888888'

mine(i) = strcol('model.attention') eq word(attentions, i) && column('best') == 1 && strlen(strcol('model.layers')) > 0
shift(i) = 0.06 * (i - 0.5 * (words(attentions) + 1))
layers(text) = text[1:1] eq '>' ? most + 1 : real(text)
x(i) = mine(i) ? column('task.seq_len') + 2 * shift(i) : NaN
y(i) = layers(strcol('model.layers')) + shift(i)
plot for [i=1:words(attentions)] data using (x(i)):(y(i)) smooth unique with lines \
        lw 1.5 dt dash(word(attentions, i)) lc rgb colour(word(attentions, i)) notitle, \
    for [i=1:words(attentions)] data using (x(i)):(y(i)) with points \
        pt shape(word(attentions, i)) ps 1.3 lw 1.5 lc rgb colour(word(attentions, i)) title title(word(attentions, i))
