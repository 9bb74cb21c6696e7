package main

import "context"

func demo(ctx context.Context, c *call) error { return c.parse(0, 0) }
