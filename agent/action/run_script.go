package action

import "context"

// scriptOptions is the second argument of run_script.
type scriptOptions struct {
	Env map[string]string `json:"env"`
}

func runScript(d Deps) func(context.Context, string, scriptOptions) (struct{}, error) {
	return func(ctx context.Context, name string, options scriptOptions) (struct{}, error) {
		// A pre-start script prepares what its job keeps on the store.
		if name == "pre-start" {
			if err := d.Instance.CheckStart(); err != nil {
				return struct{}{}, err
			}
			if err := d.Instance.TakeOver(); err != nil {
				return struct{}{}, err
			}
		}
		spec, err := d.Instance.Spec()
		if err != nil {
			return struct{}{}, err
		}
		return detached(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, d.Scripts.RunAll(ctx, spec.JobNames(), name, options.Env)
		})
	}
}
