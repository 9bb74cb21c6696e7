package blobstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"cambium/blobstore"
	"cambium/internal/blob"
	"cambium/internal/secret"
	"cambium/internal/vcap"
)

// A store chooses the id of a blob. Reading it with its digest fails at the end if the content does not match.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "blobstore")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	dirs := vcap.New(filepath.Join(dir, "vcap"))
	check(os.MkdirAll(dirs.Tmp(), 0o755))
	log := logrus.New()
	log.SetOutput(io.Discard)
	store, err := blobstore.New(blobstore.Options{Provider: "local",
		Options: secret.NewJSON(fmt.Appendf(nil, `{"blobstore_path": %q}`, filepath.Join(dir, "blobs"))),
		Dirs:    dirs, Log: logrus.NewEntry(log)})
	check(err)

	id, text, err := store.Put(ctx, func(w io.Writer) error {
		_, err := io.WriteString(w, "compiled package")
		return err
	})
	check(err)
	digest, err := blob.ParseDigest(text)
	check(err)
	r, err := store.Open(ctx, blob.Ref{ID: id, Digest: digest})
	check(err)
	content, err := io.ReadAll(r)
	check(errors.Join(err, r.Close()))
	fmt.Printf("%s\n", content)

	_, err = store.Open(ctx, blob.Ref{ID: "another", Digest: digest})
	fmt.Println(errors.Is(err, blobstore.ErrNotFound), err)
	// Output:
	// compiled package
	// true get blob another: no such blob
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
