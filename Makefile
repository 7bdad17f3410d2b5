# Husk's build. `make help` lists the targets.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BIN     ?= bin
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# A test that fails is run again, alone, and the summary names it with both results. Among thousands
# of tests of processes and packets, one a day meets a machine that stands still for seconds. More
# failures than three are no accident.
GOTEST := $(GO) run gotest.tools/gotestsum@v1.13.0 --format pkgname-and-test-fails --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-run-root-test

# Without gRPC's tracing, which needs html/template, huskd is a fifth smaller. nri_no_wasm leaves out
# the WebAssembly engine of NRI: docs/decisions/0065.
TAGS  := grpcnotrace,nri_no_wasm
BUILD := -trimpath -tags $(TAGS) -ldflags '-s -w -X github.com/huskd/husk/internal/version.Version=$(VERSION)'

# Debian packages: for pods, for tests, and for the race detector.
PODS  := runc conmon
TESTS := binutils binutils-aarch64-linux-gnu busybox crun curl dbus e2fsprogs bird2 frr etcd-server iproute2 iputils-ping nftables procps kmod qemu-system-x86 qemu-user-static skopeo tcpdump docker-registry containernetworking-plugins containerd iptables criu systemd
RACE  := gcc libc6-dev
PACKAGES = $(PODS) $(TESTS)

export CGO_ENABLED = 0

.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## build bin/huskd and bin/husk; GOARCH=arm64 for another machine
	$(GO) build $(BUILD) -o $(BIN)/ ./cmd/...

PREFIX = /usr/local
# Where runtimes look for CNI plugins.
CNIDIR = /opt/cni/bin

install: build ## install what build builds, as root; set PREFIX, and DESTDIR to stage it
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(addprefix $(BIN)/,husk huskd husk-bgp husk-wireguard)
	install -D -m 755 -t $(DESTDIR)$(CNIDIR) $(BIN)/husk-cni
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in packaging/systemd/*.service; do sed 's|/usr/bin|$(PREFIX)/bin|' $$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/}; done
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/husk CHANGELOG.md examples/huskd.toml
	install -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/husk/copyright
	test -e $(DESTDIR)/etc/husk/huskd.toml || install -D -m 644 -t $(DESTDIR)/etc/husk examples/huskd.toml
	install -d $(DESTDIR)/etc/husk/pods
	GOARCH= $(GO) run ./packaging/manual $(DESTDIR)$(PREFIX)/share
	gzip -9nf $(DESTDIR)$(PREFIX)/share/man/man1/husk*.1 $(DESTDIR)$(PREFIX)/share/man/man8/huskd.8

packages: ## build .deb, .rpm, tarballs and bills of materials into out/packages
	rm -rf out/packages
	packaging/packages.sh out/packages
	cat out/packages/SHA256SUMS

demo: PACKAGES = $(PODS)
demo: deps build ## show a pod's life on this host, as root; KEEP=1 leaves it running
	@$(GO) build $(BUILD) -o bin/demo ./test/demo
	@bin/demo $(if $(KEEP),-keep)

demo-nodes: PACKAGES = $(PODS) busybox etcd-server iproute2 iputils-ping nftables procps
demo-nodes: deps build ## show the pod network of three nodes, made of namespaces on this host, as root
	@$(GO) test -c -o bin/demo-nodes ./test/nodes
	@HUSK_HOST_TESTS=1 HUSK_TEST_BINARIES=$(CURDIR)/bin bin/demo-nodes -test.run '^TestDemo$$'

unit: ## run the tests that need no host
	$(GO) test -short ./internal/... ./cmd/...

lint: PACKAGES = protobuf-compiler
lint: deps ## check format, vet, golangci-lint, generated code, and that both architectures build
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(LINT) run
	rm -rf out/api && mkdir -p out/api && $(call protoc,out/api)
	diff -r out/api/api/v1 api/v1 -x husk.proto || { echo "api/v1 is stale: run make generate"; exit 1; }
	GOARCH=amd64 $(GO) build $(BUILD) -o /dev/null ./cmd/...
	GOARCH=arm64 $(GO) build $(BUILD) -o /dev/null ./cmd/...

# Host tests mostly wait, so more of them run at once than there are processors. Those of a virtual
# machine, which is emulated, and of many nodes keep the processors busy: they run by themselves.
# What race has run isn't run again.
test: race ## run every test, as root
	HUSK_HOST_TESTS=1 $(GOTEST) --packages "$$($(GO) list ./... | grep -Ev '^[^/]*/[^/]*/[^/]*/(internal|cmd)/|/test/(nodes|vm|install)$$' | tr '\n' ' ')" -- -vet=off -p 3 -parallel 4 -timeout 30m
	HUSK_HOST_TESTS=1 $(GOTEST) --packages ./test/vm -- -timeout 30m
	HUSK_HOST_TESTS=1 $(GOTEST) --packages ./test/nodes -- -timeout 40m

race: PACKAGES += $(RACE)
race: deps ## run the tests of internal and cmd with the race detector, as root
	HUSK_HOST_TESTS=1 CGO_ENABLED=1 $(GOTEST) --packages "./internal/... ./cmd/..." -- -race -vet=off -p 3 -parallel 4 -timeout 30m

# Two runs of make: one would install the packages of only the first target.
check: ## run all that CI runs
	.ci/run

test-kubelet: deps ## run a kubelet and a control plane, built here, against huskd, as root
	$(GO) build -tags crashpoint -o test/interop/kubelet/out/ ./cmd/...
	cd test/interop/kubelet && $(GO) build -o out/ $(addprefix k8s.io/kubernetes/cmd/,kubelet kube-apiserver kube-controller-manager kube-scheduler) sigs.k8s.io/cri-tools/cmd/crictl
	cd test/interop/kubelet && HUSK_HOST_TESTS=1 HUSK_TEST_BINARIES=$$PWD/out $(GO) test -timeout 60m .

KUBERNETES = $(CURDIR)/test/interop/kubelet/out
KUBERNETES_VERSION = 1.36.3
KUBERNETES_BUILD = -trimpath -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=v$(KUBERNETES_VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36'

# What a cluster needs beside huskd, Kubernetes' own tests, and the programs in the tests' images. The
# API server streams lists only with an etcd that is newer than Debian's. With -trimpath for all, the
# tests share the packages that are compiled.
kubernetes:
	cd test/interop/kubelet/coredns && $(GO) build -trimpath -ldflags '-s -w' -o $(KUBERNETES)/ .
	cd test/interop/kubelet/etcd && $(GO) build -trimpath -ldflags '-s -w' -o $(KUBERNETES)/etcd go.etcd.io/etcd/server/v3
	cd test/interop/kubelet && $(GO) build $(KUBERNETES_BUILD) -o $(KUBERNETES)/ ./pause github.com/onsi/ginkgo/v2/ginkgo k8s.io/sample-apiserver \
	$(addprefix k8s.io/kubernetes/,$(addprefix cmd/,kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl) $(addprefix test/images/,agnhost nonewprivs regression-issue-74839))
	cd test/interop/kubelet && $(GO) test -c -vet=off $(KUBERNETES_BUILD) -o $(KUBERNETES)/e2e.test k8s.io/kubernetes/test/e2e

# A run goes on where another one of the same commit has ended, until MINUTES are over.
test-conformance: deps kubernetes ## run Kubernetes' end-to-end tests, built here, as root; set NODE, NODES, BACKEND, GROUP, FOCUS, CLUSTERS, MINUTES or QUICK=1
	$(GO) build -tags crashpoint -o $(KUBERNETES)/ ./cmd/...
	@until=$(if $(MINUTES),$$(($$(date +%s) + 60 * $(MINUTES))),0); cd test/interop/kubelet && for node in $(or $(NODE),huskd kubelet); do \
	HUSK_HOST_TESTS=1 HUSK_TEST_BINARIES=$(KUBERNETES) HUSK_TEST_KUBERNETES=$(KUBERNETES) \
	$(GO) test -trimpath -count=1 -timeout 0 -v -run '^TestConformance$$' -parallel $(or $(CLUSTERS),1) . -node $$node -nodes $(or $(NODES),1) -backend $(or $(BACKEND),host-gw) \
	-groups '$(or $(GROUP),$(if $(QUICK),quick))' -focus '$(FOCUS)' -clusters $(or $(CLUSTERS),1) -until $$until -commit '$(shell git describe --always --dirty --exclude '*')' || failed=1; done; test -z "$$failed"

test-critest: deps ## run critest, the tests of CRI, built here, as root
	$(GO) build -tags crashpoint -o $(KUBERNETES)/ ./cmd/...
	cd test/interop/kubelet && $(GO) build $(KUBERNETES_BUILD) -o $(KUBERNETES)/ ./pause k8s.io/kubernetes/test/images/nonewprivs
	cd test/interop/kubelet && $(GO) test -c -vet=off $(KUBERNETES_BUILD) -o $(KUBERNETES)/critest sigs.k8s.io/cri-tools/cmd/critest
	cd test/interop/kubelet && HUSK_HOST_TESTS=1 HUSK_TEST_BINARIES=$(KUBERNETES) HUSK_TEST_KUBERNETES=$(KUBERNETES) $(GO) test -trimpath -count=1 -timeout 60m -v -run '^TestCritest$$' . -critest

# Where the programs of test-kubeadm are: the other tests use Debian's etcd.
KUBEADM = $(CURDIR)/out/kubeadm

test-kubeadm: deps ## run the commands of docs/kubeadm.md with Kubernetes and etcd, built here, as root
	$(GO) build -o $(KUBEADM)/ ./cmd/...
	cd test/interop/kubelet/coredns && $(GO) build -trimpath -ldflags '-s -w' -o $(KUBEADM)/ .
	cd test/interop/kubelet/etcd && $(GO) build -trimpath -ldflags '-s -w' -o $(KUBEADM)/etcd go.etcd.io/etcd/server/v3
	cd test/interop/kubelet && $(GO) build $(KUBERNETES_BUILD) -o $(KUBEADM)/ ./pause $(addprefix k8s.io/kubernetes/cmd/,kubeadm kubectl kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy)
	HUSK_HOST_TESTS=1 HUSK_TEST_KUBERNETES=$(KUBEADM) $(GO) test -count=1 -timeout 60m -v ./test/interop/kubeadm

test-install: PACKAGES += rpm mmdebstrap
test-install: deps test-kubeadm ## build the packages twice, and install, upgrade and remove them in a VM, as root; and test-kubeadm
	HUSK_HOST_TESTS=1 $(GO) test -count=1 -timeout 60m -v ./test/install

test-gvisor: deps ## run pods and the drivers' suite with gVisor, built here, as root
	$(GO) run ./test/interop/gvisor out/gvisor
	HUSK_HOST_TESTS=1 HUSK_TEST_SHIM=$(CURDIR)/out/gvisor/containerd-shim-runsc-v1 HUSK_TEST_SHIM_CONFIG=$(CURDIR)/out/gvisor/runsc.toml \
	$(GO) test -count=1 -timeout 20m ./internal/oci/shim ./test/e2e -run 'Sandboxed$$|^TestShim$$|^TestShimKilled$$'

bench: deps build ## measure huskd beside containerd, built here, as root
	@$(GO) build $(BUILD) -o bin/bench ./test/bench
	@bin/bench

microbench: deps ## run the Go benchmarks, as root; ONLY=Adopt for those of that name
	@$(GO) test -run '^$$' -bench '$(or $(ONLY),.)' $$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs dirname | sort -u) | \
	awk '/^Benchmark/ { sub(/-[0-9]+$$/, "", $$1); print substr($$1, 10); for (i = 3; i < NF; i += 2) printf "%14s %s\n", $$i, $$(i+1) } \
	/^(---|FAIL|panic)/ { print; bad = 1 } END { exit bad }'

soak: deps ## run long random fault tests and churn pods, as root; set STEPS, FOR, PODS, KILLS and SEED
	$(GO) test -count=1 -timeout 0 -v ./internal/simulation -steps $(or $(STEPS),10000000)
	$(GO) test -count=1 -timeout 0 -v ./internal/network/lease -run TestSimulation -steps $(or $(STEPS),10000000)
	HUSK_HOST_TESTS=1 $(GO) test -count=1 -timeout 0 -v ./test/crash -run TestSchedule -seed $(or $(SEED),1) -for $(or $(FOR),20m)
	HUSK_HOST_TESTS=1 $(GO) test -count=1 -timeout 0 -v ./test/crash -run TestChurn -pods $(or $(PODS),10000)
	HUSK_HOST_TESTS=1 $(GO) test -count=1 -timeout 0 -v ./test/crash -run TestPolicyAcrossKills -kills $(or $(KILLS),1000)

fuzz: ## fuzz every parser of outside input; FUZZTIME=5m each
	@grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
	for name in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' $$file); do echo "$$(dirname $$file) $$name"; \
	$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(or $(FUZZTIME),30s) $$(dirname $$file) || exit 1; done; done

# protoc writes the Go code of huskd's API below a directory.
protoc = GOARCH= GOBIN=$(CURDIR)/bin/protoc $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12 && \
	GOARCH= GOBIN=$(CURDIR)/bin/protoc $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2 && \
	protoc --plugin=bin/protoc/protoc-gen-go --plugin=bin/protoc/protoc-gen-go-grpc --go_out=$(1) --go_opt=paths=source_relative --go-grpc_out=$(1) --go-grpc_opt=paths=source_relative api/v1/husk.proto

generate: PACKAGES = protobuf-compiler
generate: deps ## write api/v1 from its .proto file, and docs/reference from the code
	$(call protoc,.)
	$(GO) test ./test/docs -run TestReference -count 1 -update

deps: ## install the Debian packages that are missing
	@missing=; for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; fi

clean: ## remove what was built
	rm -rf bin out test/interop/kubelet/out

.PHONY: help build install packages demo demo-nodes unit lint race test test-install test-kubeadm test-kubelet kubernetes test-conformance test-critest test-gvisor check bench microbench soak fuzz generate deps clean
