# Husk's build. `make help` lists what can be made.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X github.com/huskd/husk/internal/version.Version=$(VERSION)
PACKAGES := runc crun conmon iproute2 iputils-ping nftables procps skopeo docker-registry

export CGO_ENABLED = 0

.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

deps: ## install what Debian offers: runc, crun, conmon and what tests use
	@missing=; for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; fi

test: deps ## run every test, as root
	HUSK_HOST_TESTS=1 $(GO) test ./...

check: deps ## format, vet, lint, and test with the race detector
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	HUSK_HOST_TESTS=1 CGO_ENABLED=1 $(GO) test -race ./...

clean: ## remove what was built
	rm -rf bin out

.PHONY: help deps test check clean
