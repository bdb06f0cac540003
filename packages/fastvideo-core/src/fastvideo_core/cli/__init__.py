"""The `fastvideo` command. Importing it, and asking for help, imports neither torch nor a model.

    main        finds the command, runs it, turns every ending into an exit code
    parser      argparse with one-line errors that name the nearest flag
    shell       what a command has of the terminal: output, messages, Ctrl-C
    options     flags that several commands share
    jobs        from flags and lines to checked requests with checked outputs
    running     runs them, with progress, cancellation and saving
    progress    what is shown while they run

and one module a command.
"""
