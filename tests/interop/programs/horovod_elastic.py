"""Horovod's elastic example for PyTorch, as its documentation writes it (docs/elastic.rst), with a
model of one layer, a line per batch, and KILL="RANK BATCH ..." for ranks that die once each; with
JOIN_DIES="RANK,REQUEST,..." such a rank dies when it sends a request that begins so to join a later
world. Where ranks would lose a notification, before they listen and before the end of a reset, they wait
until the file HELD exists. It ends after BATCHES, or with UNTIL when that file exists. Horovod's threads
talk to each other every 10 ms: the millisecond that it has otherwise takes the CPUs of those beside it."""
import os
import signal
import socket
import sys
import threading
import time

import horovod.torch as hvd
import torch
from horovod.common.elastic import notification_manager

BATCHES, COMMIT = int(os.environ.get("BATCHES", "0")), 5
UNTIL = os.environ.get("UNTIL")

os.environ["HOROVOD_CYCLE_TIME"] = "10"
hvd.init()
torch.manual_seed(1)
lr = 0.001
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def die_once(batch):
    """RANK is ddprun's: the process, not its place in Horovod's world. Those of one batch die together."""
    words = os.environ.get("KILL", "").split()
    mine = [r for r, when in zip(words[::2], words[1::2]) if int(when) == batch]
    flags = [os.path.join(os.environ["FLAGS"], f"{r}-{batch}") for r in mine]
    if os.environ["RANK"] not in mine or all(os.path.exists(flag) for flag in flags):
        return
    open(flags[mine.index(os.environ["RANK"])], "w").close()
    while not all(os.path.exists(flag) for flag in flags):
        time.sleep(0.01)
    say(f"dies: {os.environ['RANK']} at {time.time():.3f}")
    os.kill(os.getpid(), signal.SIGKILL)


def relay(listener, store, request):
    """Each connection of Horovod to the store, until there is such a request."""
    while True:
        client = listener.accept()[0]
        text = client.recv(1 << 20)
        if text.startswith(request.encode()):
            say(f"dies: {os.environ['RANK']} at {time.time():.3f}")
            os.kill(os.getpid(), signal.SIGKILL)
        with socket.create_connection(store) as server:
            server.sendall(text)
            client.sendall(server.recv(1 << 20))
        client.close()


def init_and_die():
    words = os.environ["JOIN_DIES"].split(",")
    if os.environ["RANK"] in words[::2]:
        names = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
        store = os.environ[names[0]], int(os.environ[names[1]])
        listener = socket.create_server(("127.0.0.1", 0))
        os.environ[names[0]], os.environ[names[1]] = "127.0.0.1", str(listener.getsockname()[1])
        request = words[words.index(os.environ["RANK"]) + 1]
        threading.Thread(target=relay, args=(listener, store, request), daemon=True).start()
    hvd.init()


def hold_after(where, name):
    call = getattr(where, name)

    def call_and_wait():
        call()
        say(f"waits: {os.environ['RANK']}")
        while not os.path.exists(os.environ["HELD"]):
            time.sleep(0.01)
    setattr(where, name, call_and_wait)


if "JOIN_DIES" in os.environ:
    hvd.elastic.init = init_and_die
if "HELD" in os.environ:
    hold_after(notification_manager, "init")
    hold_after(hvd.elastic, "init")


def goes_on(batch):
    return batch < BATCHES if not UNTIL else not hvd.broadcast_object(os.path.exists(UNTIL), name="until")


@hvd.elastic.run
def train(state):
    say(f"runs: {os.environ['RANK']} is {hvd.rank()} of {hvd.size()} from {state.batch} in {os.getpid()}")
    while goes_on(state.batch):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        die_once(state.batch)
        optimizer.step()
        state.batch += 1
        state.work += hvd.size()
        if state.batch % COMMIT == 0:
            state.commit()
        if hvd.rank() == 0:
            say(f"batch {state.batch} of {hvd.size()} ranks by {os.environ['RANK']} at {time.time():.3f}")
        time.sleep(float(os.environ.get("PAUSE", "0")))


def on_state_reset():
    # adjust learning rate on reset
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, batch=0, work=0)
state.register_reset_callbacks([on_state_reset])
train(state)
weights = sum(p.sum().item() for p in model.parameters())
say(f"done: {os.environ['RANK']} at {state.batch}, work {state.work}, weights {weights:.6f}")
