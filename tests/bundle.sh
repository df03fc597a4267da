#!/bin/sh
# Makes a folder that runs on a machine with nothing installed: bundle.sh FOLDER PROGRAM...
# Programs in bin/, the libraries that they need in lib/ (glibc, the driver and the CUDA toolkit belong to the
# machine), experiments/ and plots/ beside them.
set -eu
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
cp "$@" "$folder/bin/"
strip --strip-debug "$folder"/bin/*
cp tests/cuda.sh "$folder/bin/"
for program in "$@"; do
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }'
done | sort -u | while read -r name path; do
    case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libcuda.so.*) ;;
    *) cp -L "$path" "$folder/lib/$name" ;;
    esac
done
for part in experiments plots LICENSE README.md; do
    if [ -e "$part" ]; then cp -R "$part" "$folder/"; fi
done
du -sh "$folder"
