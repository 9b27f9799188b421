package main

import (
	_ "github.com/HdrHistogram/hdrhistogram-go"
	_ "github.com/bsm/redislock"
	_ "github.com/go-redsync/redsync/v4"
	_ "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/jedib0t/go-pretty/v6/table"
	_ "github.com/quorumlock/redlock"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/redis/rueidis"
	_ "github.com/redis/rueidis/rueidislock"
	_ "github.com/spf13/cobra"
	_ "gonum.org/v1/plot"
	_ "gonum.org/v1/plot/vg/vgsvg"
	_ "golang.org/x/sync/errgroup"
	_ "github.com/stretchr/testify/require"
)

func main() {}
