// Package desired is pure: settings + options + observed state → what the machine should look like.
// It reads no file and asks no kernel; everything it decides can be printed before it is done.
package desired
