#!/bin/sh
# Builds Helm and kubeconform with Go, which compares every module with the Go checksum database. Helm takes up to
# 20 minutes, once: both are kept outside of this tree.
# usage: tools/chart_tools.sh FOLDER        it prints nothing if both are there
set -eu
folder=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Without this, a shell that a signal ends does not run the line above.
trap 'exit 1' HUP INT TERM

build() { # COMMAND VERSION MODULE
    [ -x "$folder/$1-$2" ] && return
    command -v go >/dev/null || { echo "go is not installed: it builds $1. On Debian: apt-get install golang" >&2; exit 1; }
    echo "Building $1 $2 ..."
    GOBIN=$made go install -ldflags="-s -w" "$3@v$2"
    mkdir -p "$folder"
    mv "$made/$1" "$folder/$1-$2"
}

build kubeconform 0.8.0 github.com/yannh/kubeconform/cmd/kubeconform
build helm 4.3.1 helm.sh/helm/v4/cmd/helm
