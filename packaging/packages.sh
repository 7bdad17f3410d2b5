#!/bin/sh
# packages.sh OUT [ARCH] builds the packages of this commit into the directory OUT, for amd64 and arm64:
# .deb and .rpm of husk and husk-cni, a tarball for /usr/local, an image, and bills of materials. The same
# commit and Go give the same bytes.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
# The last version whose modules are all on proxy.golang.org.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
export TZ=UTC LC_ALL=C SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"

# A version that dpkg and rpm order as git does: v1.2.3 < v1.2.3-4-gabc, and v1.2.3-rc.1 < v1.2.3.
VERSION=${PACKAGE_VERSION:-$(git describe --tags --match 'v*' 2>/dev/null |
	sed -E 's/^v//; s/-([0-9]+)-g([0-9a-f]+)$/+\1.g\2/; s/-/~/')}
VERSION=${VERSION:-$(git log -1 --date=format-local:%Y%m%d%H%M%S --format='0~git%cd.%h')}
export VERSION

# stage ARCH PREFIX installs into $STAGE.
stage() {
	STAGE=$work/$1$2 ARCH=$1
	export STAGE ARCH
	make -s install GOARCH="$1" BIN="$work/bin/$1" DESTDIR="$STAGE" PREFIX="$2" VERSION="$VERSION"
	find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

GOARCH= CGO_ENABLED=0 GOBIN=$work go install $nfpm
for arch in ${2:-amd64 arm64}; do
	stage $arch /usr/local
	tar -C "$STAGE/usr/local" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - . |
		gzip -9n >"$out/husk_${VERSION}_linux_$arch.tar.gz"
	GOARCH= go run ./packaging/sbom husk "$VERSION" "$work/bin/$arch"/* >"$out/husk_${VERSION}_linux_$arch.cdx.json"
	stage $arch /usr
	GOARCH= go run ./packaging/image "husk:$(echo "$VERSION" | tr '~+' '--')" $arch "$STAGE" "$out/husk_${VERSION}_image_$arch.tar"
	for name in husk husk-cni; do
		for format in deb rpm; do
			(cd packaging && "$work/nfpm" package -f $name.yaml -p $format -t "$out/" >/dev/null)
		done
	done
done
cd "$out"
sha256sum husk_* husk-cni_* husk-*.rpm 2>/dev/null | sort -u -k2 >SHA256SUMS
