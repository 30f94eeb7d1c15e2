"""pmi_client.py DIALECT [APPNUM]: a PMI client of its own, to try the server without an MPI.

Every rank puts a value that is not easy to carry, all meet, and each gets what all have
put. Rank 0 prints what it was told of the world."""

import os
import socket
import sys
import time

ODD = "a value; with = signs, blanks;; and ;"
wire = socket.socket(fileno=int(os.environ["PMI_FD"]))
rest = b""


def receive_line():
    global rest
    while b"\n" not in rest:
        rest += wire.recv(4096) or sys.exit("the server has hung up")
    line, _, rest = rest.partition(b"\n")
    return line.decode()


def receive(size):
    global rest
    while len(rest) < size:
        rest += wire.recv(4096) or sys.exit("the server has hung up")
    data, rest = rest[:size], rest[size:]
    return data.decode()


def ask_1(line):
    # byte by byte now and then: nothing says that a line comes in one piece
    for piece in (line[:5], line[5:], "\n"):
        wire.sendall(piece.encode())
    answer = receive_line()
    words, _, value = answer.partition(" value=")
    found = dict(word.split("=", 1) for word in words.split())
    return {**found, "value": value}


def send_2(cmd, **words):
    body = "".join(
        f"{k}={str(v).replace(';', ';;')};" for k, v in {"cmd": cmd, **words}.items()
    )
    wire.sendall(f"{len(body.encode()):6}{body}".encode())


def answer_2():
    answer = receive(int(receive(6))).replace(";;", "\0").split(";")
    return dict(w.replace("\0", ";").split("=", 1) for w in answer if w)


def ask_2(cmd, **words):
    send_2(cmd, **words)
    return answer_2()


def say(rank, size, mapping, values):
    expected = [f"{ODD} {r}" for r in range(size)]
    if values != expected:
        sys.exit(f"rank {rank} got {values}")
    if rank == 0:
        print(f"size {size} mapping {mapping}", flush=True)


def check_appnum(told):
    if sys.argv[2:] and told["appnum"] != sys.argv[2]:
        sys.exit(f"the program's number is {told['appnum']}, not {sys.argv[2]}")


def first():
    assert ask_1("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    assert int(ask_1("cmd=get_maxes")["vallen_max"]) >= 256
    check_appnum(ask_1("cmd=get_appnum"))
    name = ask_1("cmd=get_my_kvsname")["kvsname"]
    assert ask_1("cmd=get_universe_size")["size"] == str(size)
    assert ask_1(f"cmd=get kvsname={name} key=nobody")["rc"] != "0"
    mapping = ask_1(f"cmd=get kvsname={name} key=PMI_process_mapping")["value"]
    for turn in range(3):
        ask_1(f"cmd=put kvsname={name} key=card-{rank}-{turn} value={ODD} {rank}")
        assert ask_1("cmd=barrier_in")["cmd"] == "barrier_out"
        values = [
            ask_1(f"cmd=get kvsname={name} key=card-{r}-{turn}")["value"] for r in range(size)
        ]
    say(rank, size, mapping, values)
    assert "rc" in ask_1("cmd=unheard_of")
    ask_1("cmd=finalize")


def second():
    two_program()  # of which a rank may be several, one after the other
    say(*two_program())


def two_program():
    wire.sendall(b"cmd=init pmi_version=2 pmi_subversion=0\n")
    assert receive_line().split()[0] == "cmd=response_to_init"
    told = ask_2("fullinit", pmijobid="x", pmirank=os.environ["PMI_RANK"], threaded="FALSE")
    check_appnum(told)
    rank, size = int(told["rank"]), int(told["size"])
    assert ask_2("job-getid")["jobid"]
    mapping = ask_2("info-getjobattr", key="PMI_process_mapping")["value"]
    assert ask_2("info-getnodeattr", key="none", wait="FALSE")["found"] == "FALSE"
    # of the program before this one there is none
    assert ask_2("info-getnodeattr", key="late", wait="FALSE")["found"] == "FALSE"
    if int(os.environ["MPI_LOCALRANKID"]) == 0:
        ask_2("info-putnodeattr", key="leader", value=f"{rank};")
    assert ask_2("info-getnodeattr", key="leader", wait="TRUE")["value"].endswith(";")
    # two threads wait for what comes after the fence in which a third one is
    send_2("info-getnodeattr", key="late", wait="TRUE", thrid="5")
    send_2("info-getnodeattr", key="late", wait="TRUE", thrid="4")
    send_2("info-getnodeattr", key="never", wait="TRUE", thrid="3")
    assert ask_2("kvs-fence", thrid="6")["thrid"] == "6"
    told = {"4", "5"}
    if int(os.environ["MPI_LOCALRANKID"]) == 0:
        send_2("info-putnodeattr", key="late", value="v", thrid="8")
        told.add("8")
    assert {answer_2()["thrid"] for _ in told} == told
    assert ask_2("info-putnodeattr", key="long", value=";" * 2000)["rc"] != "0"
    assert ask_2("kvs-put", key="long", value="x" * 2000)["rc"] != "0"
    for turn in range(3):
        assert ask_2("kvs-put", key=f"card-{rank}-{turn}", value=f"{ODD} {rank}")["rc"] == "0"
        assert ask_2("kvs-fence", thrid="7")["thrid"] == "7"
        values = [
            ask_2("kvs-get", jobid="x", srcid=r, key=f"card-{r}-{turn}")["value"]
            for r in range(size)
        ]
    assert ask_2("unheard-of")["rc"] != "0"
    ask_2("finalize")
    return rank, size, mapping, values


PORT = "a b=c;"


def spawn_1():
    """Two programs, in several pieces each; one that does not exist; then a word that is none."""
    assert ask_1("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    if "PMI_SPAWNED" in os.environ:
        assert ask_1("cmd=lookup_name service=here") == {"cmd": "lookup_result", "info": "ok", "rc": "0",
                                                         "port": "p", "value": ""}
        assert ask_1("cmd=lookup_name service=there")["rc"] != "0"
        tell_spawned(ask_1("cmd=get kvsname=x key=PARENT")["value"], ask_1("cmd=get_appnum")["appnum"])
    elif os.environ["PMI_RANK"] == "0":
        def request(number, n, program, *args):
            words = [*(f"arg{i + 1}={a}" for i, a in enumerate(args)), f"argcnt={len(args)}"]
            return "\n".join(["mcmd=spawn", f"nprocs={n}", f"execname={program}", "totspawns=2",
                              f"spawnssofar={number}", *words, "preput_num=1", "preput_key_0=PARENT",
                              f"preput_val_0={PORT}", "info_num=1", "info_key_0=wdir", "info_val_0=/",
                              "endcmd"])
        assert ask_1("cmd=publish_name service=here port=p")["rc"] == "0"
        assert ask_1("cmd=publish_name service=here port=q")["rc"] != "0"
        wire.sendall((request(1, 2, sys.executable, *ARGS, "x y", "; =", ":") + "\n").encode())
        assert ask_1(request(2, 1, sys.executable, *ARGS))["rc"] == "0"
        wire.sendall((request(1, 1, "true") + "\n").encode())
        assert ask_1(request(2, 0, "true"))["rc"] != "0"
    ask_1("cmd=finalize")


def spawn_2():
    wire.sendall(b"cmd=init pmi_version=2 pmi_subversion=0\n")
    assert receive_line().split()[0] == "cmd=response_to_init"
    told = ask_2("fullinit", pmijobid="x", pmirank=os.environ["PMI_RANK"], threaded="FALSE")
    assert ("spawner-jobid" in told) == ("PMI_SPAWNED" in os.environ)
    if "PMI_SPAWNED" in os.environ:
        assert ask_2("name-lookup", name="here;")["port"] == "p;q"
        assert ask_2("name-lookup", name="there")["rc"] != "0"
        tell_spawned(ask_2("info-getjobattr", key="PARENT")["value"], told["appnum"])
    elif told["rank"] == "0":
        def program(n, *args):
            words = {"subcmd": sys.executable, "maxprocs": n, "argc": len(args),
                     **{f"argv{i}": a for i, a in enumerate(args)}, "infokeycount": 1,
                     "infokey0": "wdir", "infoval0": "/"}
            return "".join(f"{k}={str(v).replace(';', ';;')};" for k, v in words.items())
        assert ask_2("name-publish", name="here;", port="x")["rc"] == "0"
        assert ask_2("name-unpublish", name="here;")["rc"] == "0"
        assert ask_2("name-publish", name="here;", port="p;q", thrid="4")["thrid"] == "4"
        body = (f"cmd=spawn;thrid=9;ncmds=2;preputcount=1;ppkey0=PARENT;ppval0={PORT.replace(';', ';;')};"
                + program(2, *ARGS, "x y", "; =", ":") + program(1, *ARGS))
        wire.sendall(f"{len(body.encode()):6}{body}".encode())
        answer = answer_2()
        assert answer["cmd"] == "spawn-response" and answer["thrid"] == "9" and answer["rc"] == "0", answer
    ask_2("finalize")


def spawn_deaf():
    """A process that ends by SIGKILL only, and outlives this one."""
    assert ask_1("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    code = ("import os, signal, time; os.write(int(os.environ['PMI_FD']), b'cmd=init pmi_version=1\\n'); "
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
            "print('deaf', flush=True); time.sleep(60)")
    assert ask_1("\n".join(["mcmd=spawn", "nprocs=1", f"execname={sys.executable}", "totspawns=1",
                            "spawnssofar=1", "arg1=-c", f"arg2={code}", "argcnt=2", "endcmd"]))["rc"] == "0"
    ask_1("cmd=finalize")
    print("left", flush=True)


def spawn_words():
    """run FILE [WORDS...]: rank 0 spawns WORDS as one process; then all wait for FILE."""
    file, words = sys.argv[2], sys.argv[3:]
    assert ask_1("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    if words and os.environ["PMI_RANK"] == "0":
        rc = ask_1("\n".join(["mcmd=spawn", "nprocs=1", f"execname={words[0]}", "totspawns=1", "spawnssofar=1",
                              *(f"arg{i}={w}" for i, w in enumerate(words[1:], 1)), f"argcnt={len(words) - 1}",
                              "endcmd"]))["rc"]
        print("rc", rc, flush=True)
    ask_1("cmd=finalize")
    for _ in range(600):
        if os.path.exists(file):
            break
        time.sleep(0.1)


ARGS = os.path.abspath(__file__), sys.argv[1]


def tell_spawned(port, number):
    assert os.getcwd() == "/"
    print(f"port {port} {sys.argv[2:]} ({number} of {os.environ['PMI_SIZE']})", flush=True)


def late():
    """Rank 0 asks for its rank, and ends that; its MPI_Init is much later, as is that of rank 1."""
    init = "cmd=init pmi_version=1 pmi_subversion=1"
    first = os.environ["PMI_RANK"] == "0"
    if first:
        assert ask_1(init)["rc"] == "0"
        ask_1("cmd=finalize")
    time.sleep(5 if first else 5.5)
    assert ask_1(init)["rc"] == "0"
    assert ask_1("cmd=barrier_in")["cmd"] == "barrier_out"
    ask_1("cmd=finalize")


def odd_words():
    assert ask_1("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    assert ask_1(f"cmd=put kvsname=x key={'k' * 500} value=v")["rc"] != "0"
    assert ask_1("cmd=put value=v")["rc"] != "0"
    assert "rc" in ask_1("cmd=get")
    ask_1("cmd=finalize")


def rubbish(begins, goes_on):
    """Who says what is not PMI is cut off; the other goes on."""
    if os.environ["PMI_RANK"] == "0":
        odd_words()
        return
    wire.sendall(begins)
    while begins and not receive_line().startswith("cmd=response_to_init"):
        pass
    try:
        wire.sendall(goes_on)
        said = wire.recv(100)
    except OSError:
        said = b""
    if said:
        sys.exit("the server answers rubbish")


{
    "1": first,
    "2": second,
    "spawn1": spawn_1,
    "spawn2": spawn_2,
    "run": spawn_words,
    "deaf": spawn_deaf,
    "late": late,
    "lines": lambda: rubbish(b"", b"\0\xff=;cmd \n\n" * 10 + b"x" * 200000),
    "lengths": lambda: rubbish(b"cmd=init pmi_version=2 pmi_subversion=0\n", b"cmd=fullinit"),
}[sys.argv[1]]()
