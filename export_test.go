package redlock

import "github.com/quorumlock/redlock/internal/examine"

// ReportOf is what Check reports of a node that was examined.
func ReportOf(n examine.Node) NodeReport { return reportOf(n) }
