# What all figures share: the format of the output, lines that differ without colour, and the attentions in a fixed order.
# A script that loads it may say, in a line "# Reads: TABLE COLUMN ...", what it cannot do without.
if (format eq 'png') set terminal pngcairo size 900, 540 font 'Sans,12'
if (format eq 'svg') set terminal svg size 900, 540 font 'Sans,14' background 'white'
if (format eq 'pdf') set terminal pdfcairo size 6.5in, 3.9in font 'Sans,10'
set datafile separator ','
set datafile columnheaders
set datafile missing ''
set encoding utf8
set border 3
set tics nomirror out
set grid ytics lc rgb '#dddddd'
set key outside right center vertical reverse Left samplen 4

# One colour, point and dash for each attention, the same in every figure (Okabe and Ito's colours). Open points are
# attentions with a fixed decay or rotation, filled ones those with a path.
known = 'none rope sba fox path path_fox'
colours = '#999999 #000000 #E69F00 #009E73 #0072B2 #D55E00'
points = '2 4 8 6 5 7'
index(name) = sum [i=1:words(known)] (word(known, i) eq name ? i : 0)
colour(name) = word(colours, index(name) > 0 ? index(name) : 1)
shape(name) = int(word(points, index(name) > 0 ? index(name) : 1))
dashes = '3 2 3 4 1 5'
dash(name) = int(word(dashes, index(name) > 0 ? index(name) : 1))
title(name) = name eq 'rope' ? 'RoPE' : name eq 'sba' ? 'SBA' : name eq 'fox' ? 'FoX' : name eq 'path' ? 'PaTH' : \
    name eq 'path_fox' ? 'PaTH-FoX' : name

# How far the i-th of n things that share a place is moved aside, in units of the axis.
aside(i, n, step) = step * (i - 0.5 * (n + 1))

# The different words of a column, in order of appearance: reading it adds to `found`.
found = ''
note(name) = (strstrt(' '.found.' ', ' '.name.' ') > 0 ? 0 : (found = found.(strlen(found) ? ' ' : '').name, 0))
