# The entry points. Each calls one script in build/, bench/ or gpu-check/, which documents how it can fail.
.DEFAULT_GOAL := help
.PHONY: help demo down test unit guest dmem arm64 miri dist images release release-check release-test lint deny docs bench gpu-check clean
# One target at a time: each of them uses all cores by itself.
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

# Builds dist/ itself, because it needs fewer tools where no cluster can be created (it then exits with 3, make with 2).
demo: ## starts a one-node cluster, shows what a user sees, removes everything; KEEP=1 keeps the cluster, V=1 prints documents in full
	@build/e2e.sh demo

down: ## end the cluster that `make demo KEEP=1` kept
	@build/e2e.sh down

test: ## every test: formatting, lints, dist, unit, integration and end-to-end tests
	@build/test.sh

unit: ## every test that needs neither a cluster nor a build of Kubernetes, and the lints
	@build/test.sh quick

guest: dist ## the demo and the machine's tests in a Debian 12 virtual machine (DEBIAN=13: 13), with a transcript; takes half an hour
	@build/e2e.sh guest

dmem: dist ## the driver's limit on a kernel with the controller dmem: runc and crun in user-mode Linux, which takes a quarter of an hour to build, once
	@build/dmem.sh

arm64: ## the library, the software GPU and a share on an emulated arm64 processor; needs Debian's cross compiler and qemu-user-static
	@build/arm64.sh

miri: ## the tests of unsafe code in an interpreter that finds undefined behaviour; needs nightly's miri, takes minutes
	@build/test.sh miri

dist: ## the release artefacts, built and checked, in dist/; VGPU_ARCH=arm64 or both: also for the other architecture
	@build/dist.sh

images: dist ## the container images as OCI archives; prints their names
	@build/e2e.sh images

# The checklist around these three is docs/release.md.
release: dist ## release/: images, chart, SBOM, archives and the krew manifest; signed with COSIGN_KEY
	@build/release.sh

release-check: ## packs release/ again in another folder and compares the bytes
	@build/release.sh check $(OTHER)

release-test: ## by hand: release/ in a registry on loopback, signatures, and helm install, upgrade and rollback on a cluster
	@build/release-test.sh

lint: ## formatting, lints and import circles alone
	@build/lint.sh

deny: ## licences, banned crates and sources of all dependencies; needs cargo-deny
	@build/deny.sh

docs: ## the site of docs/ in target/docs, every link checked; fetches mkdocs from PyPI the first time
	@build/docs.sh

bench: dist ## the figures of docs/benchmarks.md, measured on this machine
	@bench/run.sh

# dist/ is not a prerequisite: it may come from another machine, and is built only if it is missing.
gpu-check: ## limits, coverage and cost on this machine's NVIDIA GPU; SOFT=1 uses the software GPU, ARGS="--quick --json F"
	@gpu-check/run.sh $(if $(filter-out 0,$(SOFT)),--soft-gpu) $(ARGS)

clean: ## remove build outputs (the cache outside the clone stays)
	@build/clean.sh
