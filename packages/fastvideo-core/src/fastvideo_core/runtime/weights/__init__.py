"""Finding, checking and reading weights: safetensors files in a folder, a package or a hub repository.

    locate      where the files are: a folder, an installed package, or the Hub (downloads what is needed)
    hub         a repository's files, cached or downloaded; `selection` says which, `download` fetches large ones
    files       which files of a component hold weights, single, variant or sharded
    header      one file's header, checked against the file's size before anything is read
    keys        renaming of tensor names between a file and a module
    reader      tensors, one at a time, placed in their final dtype and device
    module      a module built without memory, then filled, with every name accounted for
    memory      whether it fits, before it is tried
    version     a name for the content, for cache keys

Only `reader`, `skeleton` and `module` need torch. Nothing here runs code from a file: pickle formats are refused.
"""
