#!/bin/sh
# Makes a folder that runs on a machine with nothing installed: bundle.sh FOLDER PROGRAM...
# Programs in bin/, the libraries that they need in lib/ (glibc, the driver and the CUDA toolkit belong to the
# machine), experiments/ and plots/ beside them, and test-cuda, which runs the tests that need a GPU.
set -eu
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
cp "$@" "$folder/bin/"
cp tests/cuda.sh tests/count.sh "$folder/bin/"
for program in "$@"; do
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }'
done | sort -u | while read -r name path; do
    case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libcuda.so.*) ;;
    *) cp -L "$path" "$folder/lib/$name" ;;
    esac
done
for program in "$@"; do
    strip --strip-debug "$folder/bin/$(basename "$program")"
done
strip --strip-debug "$folder"/lib/*
for part in experiments plots LICENSE README.md; do
    if [ -e "$part" ]; then cp -R "$part" "$folder/"; fi
done
cat >"$folder/test-cuda" <<'END'
#!/bin/sh
# The tests that need a GPU.
exec sh "$(dirname "$0")/bin/cuda.sh" "$(dirname "$0")/bin"
END
chmod +x "$folder/test-cuda"

# It has to run from anywhere, with no environment, every program on the bundle's own libraries.
absolute=$(cd "$folder" && pwd)
(cd / && env -i "$absolute/bin/statelab" attentions >/dev/null)
for program in "$@"; do
    name=$(basename "$program")
    foreign=$(cd / && env -i ldd "$absolute/bin/$name" | awk -v own="$absolute/" '
        $2 == "=>" && index($3, own) != 1 && $1 !~ /^lib(c|m|dl|rt|pthread|resolv)\.so/ { print $1 }')
    if [ -n "$foreign" ]; then
        echo "the bundle's $name needs from the machine: $foreign" >&2
        exit 1
    fi
done
du -sh "$folder"
