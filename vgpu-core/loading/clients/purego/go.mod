module purego-client

go 1.21

require github.com/ebitengine/purego v0.10.0
