#!/bin/sh
# Builds the C and C++ examples through pkg-config, and runs them:
#   PKG_CONFIG_PATH=DIR examples/pkg_config.sh BUILD_FOLDER
# DIR is <prefix>/<lib>/pkgconfig of `cmake --install`, or in a wheel flashcute/lib/pkgconfig of the Python package.
set -eu
source=$(dirname "$0")
out=$1
mkdir -p "$out"
flags=$(pkg-config --cflags --libs 'flashcute >= 0.1')
# Not quoted: the flags are words. A library below a prefix is found at run time through its folder's -rpath.
rpath=-Wl,-rpath,$(pkg-config --variable=libdir flashcute)
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -Wall -Wextra -Werror "$source/c_api.c" -o "$out/c_api" $flags "$rpath" -lm
# shellcheck disable=SC2086
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror "$source/cpp_api.cpp" -o "$out/cpp_api" $flags "$rpath" -pthread
"$out/c_api"
"$out/cpp_api"
