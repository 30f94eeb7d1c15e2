"""PyTorch's store in a rank whose program has chosen a port for it (doc/programs.md)."""
import os

VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"


def watch_store(rendezvous, port):
    """The variable, for all ports alike, makes all ranks clients of a store that runs already: that is so at
    `port`, which ddprun has put into MASTER_PORT. At another one rank 0 is to serve the store, as without
    a launcher; else all would wait there until their timeout."""
    make = rendezvous._create_c10d_store

    def _create_c10d_store(hostname, asked, *args, **kwargs):
        if str(asked) == port:
            return make(hostname, asked, *args, **kwargs)
        before = os.environ.pop(VARIABLE, None)
        try:
            return make(hostname, asked, *args, **kwargs)
        finally:
            if before is not None:
                os.environ[VARIABLE] = before

    rendezvous._create_c10d_store = _create_c10d_store
