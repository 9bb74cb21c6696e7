# Targets are listed by `make` alone: a target is documented by the comment after its name.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# A build of anything but a tagged commit says that it is a development build.
VERSION ?= $(shell test -z "$$(git status --porcelain 2>/dev/null)" && \
	git describe --tags --exact-match 2>/dev/null || echo "[DEV BUILD] $$(git rev-parse --short HEAD 2>/dev/null)")
# The version is part of the binary, the directory and the commit's time are not: two builds of one commit are the
# same bytes. None of the agent's peers speaks HTTP/2.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -tags nethttpomithttp2 -ldflags '-s -w -X "main.version=$(VERSION)"$(1)'
# The lab makes stemcells, whose version is made of these unless it is a release.
COMMIT := $(shell git log -1 --format='-X main.commit=%H -X main.commitTime=%ct' 2>/dev/null)
FUZZTIME ?= 60s
NIGHTLY_FUZZTIME ?= 10m
# Without the directory in what is compiled, every clone of the project has the same build cache.
export GOFLAGS ?= -trimpath
# Programs with the race detector sleep for a second when they end, and the crash tests start many.
export GORACE ?= atexit_sleep_ms=0
export GO
# Packages tested at the same time: tests wait more than they compute.
PROCESSES := $(shell echo $$(($$(nproc) + 1)))
# Tests of containers at the same time, with nothing beside them.
CONTAINERS ?= 8
# The tags of all test tiers, so that vet and lint see every file.
TIERS := ns,root,machine,vm,bench,soak,nightly

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the Debian packages that tests, lab and demo need
	@scripts/setup

.PHONY: build
build: ## Build bin/agent, bin/lab, its helper and bin/cpi
	@mkdir -p bin
	@$(call BUILD) -o bin/agent ./cmd/agent
	@$(call BUILD, $(COMMIT)) -o bin/lab ./cmd/lab
	@$(call BUILD) -o bin/lab-guest ./lab/guest/program
	@$(call BUILD) -o bin/cpi ./cmd/cpi
	@$(call BUILD) -o bin/stemcell-init ./lab/guest/first
	@echo "bin/agent: $$(stat -c %s bin/agent) bytes"

.PHONY: demo
demo: setup build ## Boot a machine, drive it as a Director would, show where the time went; ENGINE=qemu for a VM
	@bin/lab demo $(if $(ENGINE),--engine $(ENGINE))

.PHONY: demo-create-env
demo-create-env: setup build ## Let the released bosh CLI make, change and remove a VM of the lab; ENGINE=qemu for a VM instead of a container
	@scripts/demo-create-env

.PHONY: stemcell
stemcell: setup build ## Make a BOSH stemcell with the agent in it, in bin/; IAAS=openstack (default), aws, google, …: `bin/lab stemcell --help` has all
	@bin/lab stemcell --output bin $(if $(IAAS),--iaas $(IAAS))

.PHONY: cpi-release
cpi-release: build ## Make the release of the CPI for `bosh create-env`, in bin/
	@bin/lab cpi-release --output bin

.PHONY: agent-release
agent-release: build ## Make the release with which a Director tries the agent on VMs of other stemcells, in bin/; its directory bin/agent-release is for `bosh create-release`
	@for arch in amd64 arm64; do GOOS=linux GOARCH=$$arch $(call BUILD) -o bin/agent-linux-$$arch ./cmd/agent; done
	@scripts/agent-release bin/agent-release bin/agent-linux-amd64 bin/agent-linux-arm64
	@bin/lab agent-release --output bin/cambium-agent-release.tgz bin/agent-release

.PHONY: release
release: ## Build the files of a release into dist/ from its tag: VERSION=x.y.z, SIGNING_KEY=path of an SSH key
	@GO=$(GO) scripts/release "$(VERSION)" dist

.PHONY: deb
deb: build ## Make the Debian package of bin/agent, in bin/: VERSION=x.y.z
	@GO=$(GO) scripts/licenses ./cmd/agent >bin/licenses.txt
	@scripts/changelog "$(VERSION)" >bin/CHANGELOG.md
	@scripts/deb "$(VERSION)" "$$($(GO) env GOARCH)" bin/agent bin/licenses.txt bin/CHANGELOG.md bin

.PHONY: nightly
nightly: build ## What takes too long for every change: the lab for macOS, releases built twice, other architectures, every IaaS, ten minutes of each fuzz target, the site; docs/results/nightly.md has the tests' results
	@scripts/setup nightly
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/lab
	@GO=$(GO) scripts/nightly $(CURDIR)/bin/agent
	@scripts/fuzz $(NIGHTLY_FUZZTIME)
	@$(MAKE) --no-print-directory docs

.PHONY: test
test: setup test-host ## Set-up and the tests of all tiers; the last two at once, because containers mostly wait
	@$(MAKE) --no-print-directory -j2 test-machine test-vm CONTAINERS=4

.PHONY: test-host
test-host: ## The tiers unit, ns and root in one run, which links each package once (needs root)
	@scripts/test host pkgname -race -tags ns,root -p $(PROCESSES) -timeout 40m ./...

.PHONY: unit
unit: ## Tests that need nothing but Go and a C compiler
	@scripts/test unit pkgname -race -timeout 30m ./...

.PHONY: test-ns
test-ns: ## Tests in network and mount namespaces (needs root or user namespaces)
	@scripts/test ns testname -race -tags ns -run '^TestNS' -count=1 -timeout 30m $$(scripts/tier ns)

.PHONY: test-root
test-root: ## Tests on loop devices (needs root)
	@scripts/test root testname -race -tags root -run '^TestRoot' -count=1 -p 2 -timeout 40m $$(scripts/tier root)

.PHONY: test-machine
test-machine: build ## Tests of the real binary under a real systemd (needs root, nspawn)
	@scripts/inotify-limit 512 scripts/test machine testname -race -tags machine -run '^TestMachine' -count=1 -p 2 -parallel $(CONTAINERS) -timeout 60m $$(scripts/tier machine)

.PHONY: test-vm
test-vm: build ## Tests in QEMU virtual machines, built as the programs are: what both need is compiled once
	@CGO_ENABLED=0 scripts/test vm testname -tags vm,nethttpomithttp2 -run '^TestVM' -count=1 -p 2 -parallel 2 -timeout 60m $$(scripts/tier vm)

.PHONY: lint
lint: ## Format, vet, staticcheck, errcheck, misspell, tidy go.mod
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not formatted: $$bad"; exit 1; fi
	$(GO) vet -tags $(TIERS) ./...
	$(GO) tool staticcheck -tags $(TIERS) ./...
	$(GO) tool errcheck -tags $(TIERS) -ignoretests -exclude scripts/errcheck.txt ./...
	@$(GO) tool misspell -locale US -error $$(git ls-files '*.go' '*.md' 'scripts/*' 'stemcell-assets/*')
	$(GO) mod tidy -diff

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 60s) each
	@scripts/fuzz $(FUZZTIME)

.PHONY: test-chromium
test-chromium: ## The pictures of lab timeline in chromium, which it installs
	@command -v chromium >/dev/null || apt-get install -y -qq --no-install-recommends chromium
	$(GO) test -run Picture -count=1 ./cmd/lab/picture -args -chromium

.PHONY: bench
bench: setup build ## Benchmarks, into docs/results; BENCH=pattern for some, BASELINE and PREVIOUS=path name other agents
	@scripts/bench run

.PHONY: bench-compare
bench-compare: ## The last result of bench against the one before, with noise bounds; OLD and NEW name others
	@scripts/bench compare

.PHONY: docs
docs: ## Render the pages as a static site with search, bin/site
	@scripts/setup docs
	@scripts/site

.PHONY: soak
soak: build ## The long tests, in parts of at most two hours; resumes after an interruption; PART=pattern for some
	@GO=$(GO) scripts/soak $(CURDIR)/bin/agent $(PART)

.PHONY: clean
clean: ## Remove what was built, and what a crashed lab left behind
	@if [ -x bin/lab ]; then bin/lab clean; fi
	rm -rf bin dist .cache
