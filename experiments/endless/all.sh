#!/usr/bin/env bash
# The starts of all five families, two runs at a time, one thread each: experiments/endless/all.sh FOLDER
# From the repository's root. Run it again to go on with runs that were stopped; finished ones are left alone.
# Steps are chosen for about an hour of one core each: 0.2 to 0.45 s for a step of eight images.
set -u
export out=${1:?expected the folder of the runs} python=${PYTHON:-python}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
mkdir -p "$out"
exec 9>"$out/.queue"
flock -n 9 || { echo "$out: a queue, or a run that it began, is still at work"; exit 0; }

run() {
  mkdir -p "$out/$1"
  for attempt in 1 2 3; do  # a run that was killed alone goes on where it was
    [ -e "$out/$1/start.safetensors" ] && return
    nice -n 19 "$python" -m experiments.endless.train --family "$1" --steps "$2" --out "$out/$1" >>"$out/$1/output.txt" 2>&1
  done
}
export -f run

xargs -P 2 -L 1 bash -c 'run "$@"' _ <<LIST
fastrcnn 12000
ssd 16000
retinanet 12000
fcos 12000
fasterrcnn 10000
LIST
