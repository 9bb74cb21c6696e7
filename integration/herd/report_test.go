//go:build soak

package herd

func herdPage(all []figures) string    { return "" }
func herdPicture(all []figures) string { return "" }
