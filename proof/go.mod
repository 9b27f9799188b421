module github.com/quorumlock/redlock/proof

go 1.26.0

// The library in this tree, with or without the workspace.
replace github.com/quorumlock/redlock => ../

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/quorumlock/redlock v0.0.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
