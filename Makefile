# Everything here needs Go, git, make, bash, curl and openssl, and nothing else.
GO ?= go
# GOGC=400 makes compilers faster. Only they see it, so that what is run behaves as it does anywhere.
COMPILE := GOGC=400 $(GO)
TOOL := $(GO) tool -modfile=tools/go.mod
STACK := $(GO) run ./test/cmd/stack
# -count=1: a test that starts processes is never answered from the cache. What is tested does not see GOGC.
# -vet=off: `make lint` vets all packages.
TEST := GOGC=400 $(GO) test -exec='env -u GOGC' -vet=off -count=1
# Every module, and those with code of ours, to lint and test.
MODULES := $(shell git ls-files '*go.mod' | xargs dirname)
OURS := . hack/release test/monitoring test/page
RELEASE := $(GO) run -C hack/release .

LINT_KEY := $(shell cat tools/golangci-lint/go.mod tools/golangci-lint/go.sum | cksum | cut -d' ' -f1)
LINT := .cache/bin/golangci-lint-$(LINT_KEY)
# A cache that two clones share makes golangci-lint name the other's paths, on which no exclusion matches.
export GOLANGCI_LINT_CACHE = $(CURDIR)/.cache/golangci-lint
# With cgo, which the parts and Muster's programs do without, most packages would be compiled a second time.
export CGO_ENABLED = 0
# Without DWARF, compilers and linkers are faster.
export GOFLAGS := -gcflags=all=-dwarf=false -ldflags=-w $(GOFLAGS)

# Programs read these from the environment: a tag is anybody's text until it is checked.
export VERSION REGISTRY PLATFORMS STORY

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build
build: ## Build the programs into bin/
	$(GO) build -trimpath -o bin/ ./cmd/...
generate: ## Generate deep copies and the CRDs from api/, then what the chart copies and its README
	$(TOOL) controller-gen object paths=./api/... crd:generateEmbeddedObjectMeta=false output:crd:dir=manifests/crd
	mv manifests/crd/addons.cluster.x-k8s.io_helm*.yaml manifests/helm/
	$(GO) run ./hack/channels chart
	$(GO) tool -modfile=tools/helm-docs/go.mod helm-docs -c charts -s file -l warn
dist: ## Generate into dist/ what a release installs: install.yaml and what clusterctl and the operator need
	$(GO) run ./hack/channels dist
images: ## Build the images into dist/images, and their SBOMs into dist/sbom (VERSION=v0.1.0, PLATFORMS=linux/amd64)
	$(RELEASE) images -version="$$VERSION" -platforms="$$PLATFORMS"
push-images: ## Push what `make images` built (REGISTRY=registry.example.com/muster), and say how to install that
	$(RELEASE) push -registry="$$REGISTRY"
release: ## Make everything that a release has, in dist/release (VERSION=v0.1.0)
	$(RELEASE) assets -version="$$VERSION"
clean: down ## Stop the local stack and remove all that was built, its parts included
	rm -rf bin .cache .dev dist

##@ Check
verify: verify-generated verify-modules lint verify-channels verify-docs vulncheck verify-github ## Check everything that needs no test to run
verify-generated: ## Check that `make generate` changes nothing, and that no marks of a merge are left
	@! git grep -nE '^(<<<<<<<|>>>>>>>)( |$$)'
	hack/verify-generated.sh
verify-modules: ## Check that `go mod tidy` changes nothing, in every module
	@for module in $(MODULES); do (cd $$module && $(GO) mod tidy -diff) || { echo "not tidy; run: (cd $$module && go mod tidy)"; exit 1; }; done
verify-channels: ## Check that every way to install, and the chart with each component, gives the objects of manifests/, and test the chart
	$(GO) run ./hack/channels verify
	$(GO) tool -modfile=tools/helm/go.mod helm lint --strict charts/muster
	$(GO) tool -modfile=tools/helm-unittest/go.mod helm-unittest charts/muster
verify-docs: ## Check that the documentation agrees with the code
	$(GO) run ./hack/docscheck
	cd test/page && $(TEST) -run='^TestPictures$$' ./...
verify-github: ## Lint the workflows, and check that all actions are pinned
	$(TOOL) actionlint -shellcheck= -pyflakes=
	@if grep -nE 'uses: ' .github/workflows/* | grep -vE '@[0-9a-f]{40} # v'; then echo "actions are pinned by digest, with their version as a comment"; exit 1; fi
format: $(LINT) ## Format all Go files, the order of their imports included
	$(LINT) fmt ./...
lint: $(LINT) ## Run golangci-lint, building it the first time
	@for module in $(OURS); do (set -x; cd $$module && $(CURDIR)/$(LINT) run ./...); done
$(LINT):
	@echo "building golangci-lint; this is done once"; mkdir -p $(@D)
	cd tools/golangci-lint && GOWORK=off $(COMPILE) build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
vulncheck: ## Look for known vulnerabilities, if their database can be reached
	hack/vulncheck.sh

##@ Test
RUN_TARGETS := MAKE='$(MAKE)' hack/run-targets.sh
# What runs on each set of parts (see test/stack/parts), and that on the sets that no other target runs.
SET_TARGETS := test-integration test-story test-helm-once
# Values of HelmChartProxies need Fleet 0.16.
MATRIX_TARGETS := $(filter-out older-test-helm-once,$(SET_TARGETS:%=older-%)) $(SET_TARGETS:%=previous-%)
test: ## Run what finds most mistakes, in minutes: unit tests, the main decisions, a random run, the page
	@$(RUN_TARGETS) test-unit test-main test-random-once test-page
test-all: ## Run everything that a change must pass, as CI does
	@$(RUN_TARGETS) parts test-unit test-race test-differential test-monitoring test-page test-stack test-integration test-rancher test-fleet-installer-once test-helm-once test-hold-once test-channels-once test-random test-faults test-e2e test-release-trial
test-nightly: ## Run the rest: upgrade, move, migration, every way to install, charts, faults, images, release
	@$(RUN_TARGETS) test-random-rancher test-upgrade test-move test-migration test-channels test-fleet-installer test-helm test-hold test-story-faults test-release test-images $(MATRIX_TARGETS) faults
parts: ## Build the parts of the local stack into .cache/, each once
	$(STACK) build
parts-api:
	$(STACK) build --profile=api
# What is built here does not count against the timeouts below.
test-integration test-main test-fleet-installer-once test-fleet-installer test-channels test-channels-once: parts-api
test-random test-random-once test-random-rancher test-faults test-page faults bench bench-page: parts-api
test-e2e test-story test-story-faults test-move test-migration test-helm test-helm-once test-hold test-hold-once test-images: parts
test-unit: ## Run the tests that need no process
	$(TEST) -timeout=10m ./api/... ./internal/... ./cmd/... ./hack/... ./test/bench/... ./test/helm/gates/...
test-race: ## Run the product's tests of test-unit with the race detector, if there is a C compiler
	hack/test-race.sh
test-monitoring: ## Test alerts and dashboard with Prometheus's own engine
	cd test/monitoring && $(TEST) -timeout=10m ./...
test-differential: ## Compare whom bundles are for, and how they roll out, with Fleet's own code
	$(TEST) -timeout=15m ./test/differential/...
test-page: ## Look at the page of kubectl muster view in a browser, if there is a Chromium (MUSTER_BROWSER=required: fail without)
	cd test/page && $(TEST) -v -timeout=10m -skip='^Test(Live|Many)$$' ./...
	$(TEST) -v -timeout=25m ./test/view/...
screenshots: ## Take the pictures of the page that README and the guides show, with the sum of each page (needs a Chromium)
	cd test/page && MUSTER_BROWSER=required MUSTER_SCREENSHOTS=$(CURDIR)/docs/guides/images $(TEST) -run='^TestPictures$$' ./...
test-stack: ## Test the local stack itself
	$(TEST) -timeout=20m ./test/stack/...
test-integration: ## Test both programs on a real API server
	$(TEST) -timeout=45m -skip='^TestUpgradeWritesNothing$$' ./test/integration/...
MAIN_TESTS := TestApplyReturnsTheStamp|TestImportAcrossNamespaces|TestControlPlaneChangeReachesTheValues|TestRebase|TestDeselection|TestDeleteFinishesAtOnce|TestConflictEndsWithItsRival|TestPausedAndNameConflict|TestWhatOthersChangeIsPutBack|TestUnchangedCostsNothing|TestConfigInvalidIsRefused|TestConfigStatusCounts|TestWarningsOnClusters|TestTenants|TestAccessIsNarrow|TestBookkeepingIsMustersOwn|TestAgentInitiated|TestHelmChartProxyFields
test-main: ## Test the main decisions on a real API server: the part of test-integration that make test runs
	$(TEST) -timeout=15m -run='^($(MAIN_TESTS))$$' ./test/integration
test-fleet-installer-once: ## Install Fleet by the installer, once
	$(TEST) -timeout=20m -run='^TestInstall$$' ./test/fleet-installer/...
test-fleet-installer: ## Install and upgrade Fleet itself, from a real repository and a real registry (MUSTER_SEED)
	$(TEST) -timeout=40m ./test/fleet-installer/...
test-channels: ## Install Muster in every way of docs/install.md, by the guide's own commands
	$(TEST) -timeout=30m ./test/channels/...
test-channels-once: ## Install Muster with kubectl, by the guide's own commands
	$(TEST) -timeout=15m -run='TestWaysToInstall/kubectl' ./test/channels/...
RANDOM_TIMEOUT ?= 60m
test-random: ## Play random runs on a real API server against the oracle (MUSTER_SEED, MUSTER_SEEDS, MUSTER_STEPS; RANDOM_TIMEOUT=5h for many)
	$(TEST) -timeout=$(RANDOM_TIMEOUT) ./test/oracle/... ./test/rollouts/... ./test/random/...
test-random-once: ## Play one random run of about a minute
	MUSTER_SEEDS=1 MUSTER_STEPS=30 $(TEST) -timeout=15m -run='^TestRandom$$' ./test/random
test-random-rancher: ## Play twenty random runs beside Rancher (MUSTER_SEED)
	MUSTER_SEEDS=20 $(TEST) -timeout=30m -run='^TestRancher$$' ./test/random
# The last release before this commit, and until there is one, a commit of 2026-11-23.
UPGRADE_FROM ?= $(shell git describe --tags --abbrev=0 --match='v*' HEAD^ 2>/dev/null || echo 6a33df2)
test-upgrade: ## Upgrade from the last release (UPGRADE_FROM=REVISION) and roll back, with Cluster API and Fleet
	@if [ "$$(git rev-parse --is-shallow-repository)" = true ] && ! git cat-file -e '$(UPGRADE_FROM)^{commit}' 2>/dev/null; then \
		echo "skipped entirely: this clone is shallow, and its history does not go back to $(UPGRADE_FROM); see git fetch --unshallow"; exit 0; \
	fi; set -x; \
	$(STACK) build; \
	MUSTER_UPGRADE_FROM='$(UPGRADE_FROM)' $(TEST) -timeout=30m -run='^(TestUpgrade|TestUpgradeWritesNothing)$$' ./test/e2e ./test/integration
test-faults: ## Let two faults strike a running Muster, once each
	$(TEST) -short -parallel=1 -timeout=15m ./test/faults/...
test-rancher: ## Test Muster beside Rancher, which is played, with Fleet's own controllers
	$(TEST) -timeout 30m ./test/rancher
test-e2e: ## Test the whole: Cluster API, Fleet and Muster
	$(TEST) -timeout=30m -skip='^TestFaults|^TestUpgrade$$' ./test/e2e/...
test-story: ## Tell the main story of test-e2e only
	$(TEST) -timeout=30m -run='^TestStory$$' ./test/e2e
test-matrix: ## Run integration, the main story and three charts on each set of versions that docs/support.md names
	@$(RUN_TARGETS) $(SET_TARGETS) $(MATRIX_TARGETS)
older-%:
	MUSTER_PARTS=older $(MAKE) $*
previous-%:
	MUSTER_PARTS=previous $(MAKE) $*
test-story-faults: ## Tell three stories of test-e2e while programs and API servers fail, each once
	$(TEST) -timeout=30m -run='^TestFaults' ./test/e2e/...
test-move: ## Move a cluster with clusterctl between two management clusters, and back
	$(TEST) -timeout=30m ./test/move/...
test-migration: ## Migrate from CAAPF, which is played, and from CAAPH, and back
	$(TEST) -p=1 -timeout=30m ./test/migration/...
test-helm: ## Test HelmChartProxies on the whole stack, with charts of other projects beside Helm, and rollouts over 200 Clusters
	$(TEST) -p=1 -timeout=100m ./test/helm/...
test-helm-once: ## Test a HelmChartProxy and a rollout on the whole stack, and three charts of other projects beside Helm
	$(TEST) -timeout=30m -run='^TestStory$$|^TestStages$$|^TestCorpus$$/^(metrics-server|ingress-nginx|fleet-crd)$$' ./test/helm
test-hold: ## Test that upgrades wait for their add-ons, on the whole stack
	$(TEST) -timeout=30m ./test/hold/...
test-hold-once: ## Let one upgrade wait for its add-on, on the whole stack
	$(TEST) -v -timeout=15m -run='^TestHold$$' ./test/hold
test-release: ## Release the last commit in two clones, compare byte by byte, and use what was made
	cd hack/release && $(TEST) -timeout=30m ./...
test-release-trial: ## The same, with images and the plugin of kubectl for this machine only
	cd hack/release && MUSTER_RELEASE=trial $(TEST) -timeout=30m ./...
test-images: ## Play the main story with the programs out of images that a registry was given
	hack/test-images.sh
faults: ## Let every fault strike a running Muster, 20 times each (FAULTS_FLAGS='-run=TestFaults/NAME -count=N'; MUSTER_SEED)
	$(TEST) -v -run='^TestFaults$$' -count=20 -parallel=2 -timeout=110m ./test/faults $(FAULTS_FLAGS)

##@ Benchmark
bench: ## Measure imports, requests, memory and admission (BENCH_FLAGS=-n=500: quickly, -only=, see -help)
	$(GO) run ./test/bench $(BENCH_FLAGS)
bench-page: ## Measure the page of kubectl muster view with 10 000 Clusters, beside what kubectl and a page of one Cluster take (MUSTER_MANY=600: quickly)
	MUSTER_BROWSER=required $(TEST) -v -run='^$$' -bench=. -benchtime=1x -timeout=15m ./test/view/

##@ Local stack
first-time:
	@[ -d .cache/parts ] || { echo "the first time everything is built from source, which takes many minutes"; $(COMPILE) build ./test/cmd/stack ./test/cmd/demo; }
demo: first-time ## Start the local stack and play the main story on it (STORY=charts, STORY=nat: play that one on the stack that is up)
	@[ -n "$$STORY" ] || $(GO) run ./test/cmd/demo check-clean || $(STACK) down
	$(STACK) up --with=$(if $(filter nat,$(STORY)),registrar,helm) $(UP_FLAGS)
	@$(GO) run ./test/cmd/demo
up: first-time ## Start the local stack, return when it is ready (UP_FLAGS=--downstream: with a cluster to deploy to; --with=helm,registrar,installer)
	$(STACK) up $(UP_FLAGS)
down: ## Stop the local stack
	$(STACK) down
status: ## Show what of the local stack runs, and where its logs are
	$(STACK) status
