#!/usr/bin/env bash
# The starts of all families, two runs at a time, one thread each: experiments/endless/all.sh FOLDER [hard|soft]
# From the repository's root. Run it again to go on with runs that were stopped; finished ones are left alone. While another
# queue is at work in the folder, this one waits.
# Steps are chosen for half an hour to three hours of one core each: 0.2 to 0.9 s for a step of eight images. The rate ends at
# zero everywhere, but 3000 or 6000 steps are not all that a detector could learn. The DETR begins with the trunk of the SSD,
# which is done long before its turn.
set -u
export out=${1:?expected the folder of the runs} labels=${2:-hard} python=${PYTHON:-python}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
mkdir -p "$out"
exec 9>"$out/.queue"  # runs inherit it: a queue that was killed alone holds the others up until its runs have ended, too
flock 9

run() {
  folder=$out/$1
  [ "$labels" = soft ] && folder=$folder-soft
  mkdir -p "$folder"
  for attempt in 1 2 3; do  # a run that was killed alone goes on where it was
    [ -e "$folder/start.safetensors" ] && return
    nice -n 19 "$python" -m experiments.endless.train --family "$1" --steps "$2" --labels "$labels" --out "$folder" \
      "${@:3}" >>"$folder/output.txt" 2>&1
  done
}
export -f run

{
  echo fastrcnn 12000
  echo ssd 16000
  echo retinanet 6000
  echo fcos 3000
  if [ "$labels" = hard ]; then  # these have no soft labels
    echo fasterrcnn 3000
    echo detr 4000 --longest-gradient 1.0 --trunk ssd
  fi
} | xargs -P 2 -L 1 bash -c 'run "$@"' _
