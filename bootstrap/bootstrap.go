// Package bootstrap boots a machine from the start of the agent until the Director can use it. Steps is the boot table.
// Package engine runs it, and plans it for agent plan. A row of the table names a function that returns desired states
// with their domains, all of which are fields of Machine. Only rows that start something have code of their own. Loop
// runs the table until the machine is ready, and Announcer shows the verdict to people. Package fetch asks the settings
// sources.
package bootstrap
