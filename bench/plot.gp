# plot.gp - the two plots of docs/bench.md. gnuplot -e "folder='build/bench'; out='docs/bench.svg'" bench/plot.gp
set terminal svg size 1100,1000 font "sans-serif,13" background rgb "white"
set output out
set datafile separator "\t"
set datafile missing "?"
set style data histograms
set style histogram clustered gap 1.5
set style fill solid 0.9 noborder
set key above horizontal center maxrows 1 samplen 1.5 width -2
set grid ytics lt 1 lc rgb "#cccccc"
set xrange [-0.6:*]
set bmargin 5
set tmargin 5
set border 3
set tics nomirror
set linetype 1 lc rgb "#0b6e4f"
set linetype 2 lc rgb "#8da0cb"
set linetype 3 lc rgb "#e5c494"
set linetype 4 lc rgb "#fc8d62"
set linetype 5 lc rgb "#e78ac3"
set linetype 6 lc rgb "#999999"
set linetype 7 lc rgb "#444444"
set linetype 8 lc rgb "#d00000" lw 2.5
set multiplot layout 2,1
set title "Queues: ns, logarithmic; lower is better"
set logscale y
set yrange [2:*]
plot for [i=2:7] folder."/queues.dat" using i:xtic(1) title columnheader(i) lt i-1, \
     folder."/queues.dat" using ($0-0.42):8:(0.84):(0) with vectors nohead lt 8 title columnheader(8)
unset logscale y
set title "Copies and fill: GB/s written; higher is better"
set yrange [0:*]
plot for [i=2:8] folder."/copies.dat" using i:xtic(1) title columnheader(i) lt i-1, \
     folder."/copies.dat" using ($0-0.42):9:(0.84):(0) with vectors nohead lt 8 title columnheader(9)
unset multiplot
