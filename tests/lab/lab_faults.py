"""lab fault HOST WHAT [ARG...] - break and repair a host.

  link-down, link-up          pull and plug the cable: silence
  drop [in|out], undrop       lose everything to the host, from it, or both
  delay MS [JITTER]           each frame is late by so much, both ways
  loss PERCENT, rate MBIT     lose frames; carry so few Mbit/s
  mtu BYTES HOST              lose what is larger and comes from HOST
  clear                       a good cable again: none of these
  if-down, if-up              the host's own interface: ENETUNREACH there
  freeze, thaw                no process runs; the kernel still answers (ping, TCP)
  kill                        end every process at once; peers see their connections end
  crash                       the cable first, then kill, as when power fails: silence
  shutdown, boot              SIGTERM to all processes, a second, then kill; start again
  sshd-stop, sshd-hang, sshd-start   port 22 refuses; accepts and says nothing; serves
  dns [silent], dns-off       names come from a name server of the host's own, which may not
                              answer; from /etc/hosts again
  readonly DIR, noexec DIR    no write, no exec below the folder, in this host only
  full DIR                    an empty folder on a full disk of 64 KiB in its place
  slow DIR [MS]               the folder behind a file server that takes MS (10) for an answer
  stall DIR, unstall DIR      that server does not answer at all; answers again
  mend DIR                    the folder as it was. After readonly, noexec and full: KEEP... names
                              folders below DIR that stay as they are
"""
import json
import os
import subprocess
import sys

IN_PLACE = """set -e
how=$1 dir=$2; shift 2
i=0; for k; do i=$((i + 1)); mkdir -p /run/lab/keep/$i; mount --bind "$k" /run/lab/keep/$i; done
case $how in
full) mount -t tmpfs -o size=64k,mode=1777 lab-full "$dir" ;;
readonly) mount --bind "$dir" "$dir"; mount -o remount,bind,ro "$dir" ;;
noexec) mount --bind "$dir" "$dir"; mount -o remount,bind,noexec "$dir" ;;
esac
i=0; for k; do
    i=$((i + 1)); [ -d "$k" ] || mkdir -p "$k"
    mount --bind /run/lab/keep/$i "$k"; umount /run/lab/keep/$i
done
[ $how != full ] || cat /dev/zero >"$dir/.full" 2>/dev/null || :"""
SSHD_START = """kill -CONT "$(cat /run/sshd.pid)" 2>/dev/null && exit
rm -f /run/sshd.pid; /usr/sbin/sshd -f /etc/ssh/sshd_config
for i in $(seq 200); do [ ! -s /run/sshd.pid ] || exit 0; sleep 0.05; done"""
PID_FILE = "/run/lab/fs.pid"
NAMES = """set -e
mkdir -p /run/lab/dns; cd /run/lab/dns
[ -e all ] || cp /etc/hosts all
/usr/bin/python3 -I "$0" all $1 >pid
echo 127.0.0.1 localhost >hosts; echo nameserver 127.0.0.1 >resolv.conf; echo hosts: files dns >nsswitch.conf
# Ubuntu's is a link into /run, and a host has a /run of its own
[ ! -L /etc/resolv.conf ] || { f=$(readlink -m /etc/resolv.conf); mkdir -p "${f%/*}"; touch "$f"; }
for f in hosts resolv.conf nsswitch.conf; do mount --bind $f /etc/$f; done"""
NAMES_OFF = """for f in hosts resolv.conf nsswitch.conf; do umount /etc/$f; done
kill $(cat /run/lab/dns/pid)"""
CABLE = ("drop", "delay", "jitter", "loss", "rate", "mtu")


class Faults:
    """The faults of a host, in a file of its folder, until it is restarted."""

    def __init__(self, host):
        self.path, self.known = f"{host.path}/faults", {}
        if os.path.exists(self.path):
            with open(self.path, encoding="ascii") as f:
                self.known = dict(line.rstrip("\n").split("=", 1) for line in f)

    def set(self, **changes):
        self.known.update(changes)
        self.known = {k: v for k, v in self.known.items() if v is not None}
        with open(self.path, "w", encoding="ascii") as f:
            f.writelines(f"{k}={v}\n" for k, v in self.known.items())


def end_wire(lab, host, port):
    """The process that copies the host's frames to `port`, if there is one."""
    for pid, words in lab.ours(("lab-wire",)).items():
        if words[1] == host.name:
            os.kill(pid, 9)
            lab.in_switch(f"link del {port}", check=False)


def cable(lab, host, faults):
    """Without faults v<n>, the host's port, is in the bridge. Otherwise a process copies its frames
    to w<n>, whose peer x<n> is in the bridge."""
    port, ours, far = (f"{letter}{host.number}" for letter in "vwx")
    end_wire(lab, host, ours)
    settings = {k: v for k, v in faults.known.items() if k in CABLE}
    if not settings:
        lab.in_switch(f"link set {port} master br0")
        return
    lab.in_switch(f"link set {port} nomaster", f"link add {ours} type veth peer name {far}",
                  f"link set {far} master br0 up", f"link set {ours} up")
    log = open(f"{host.path}/wire.log", "w+b")  # pylint: disable=consider-using-with
    child = subprocess.Popen(
        ["nsenter", "-t", str(lab.switch()), "-n", "/usr/bin/python3", "-I",
         os.path.join(os.path.dirname(__file__), "lab_wire.py"), "lab-wire", lab.state, host.name,
         port, ours, json.dumps(settings)],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while os.path.getsize(log.name) == 0:
        if child.poll() is not None:
            sys.exit("lab: the cable's process has ended")


def end(lab, host, what):
    if what == "crash":
        lab.in_switch(f"link set v{host.number} down")
    host.end(15 if what == "shutdown" else 9)
    lab.wait(f"the end of {host.name}", lambda: not host.pid())
    end_wire(lab, host, f"w{host.number}")
    Faults(host).set(**dict.fromkeys(Faults(host).known))


def slow(host, folder, ms="10"):
    host.run("/usr/bin/python3", "-I", os.path.join(os.path.dirname(__file__), "lab_fs.py"),
             folder, ms, PID_FILE)


def fault(lab, words):
    if len(words) < 2:
        print(__doc__.rstrip())
        sys.exit(2 if words and words != ["--help"] else 0)
    host, what, args = lab.host(words[0]), words[1], words[2:]
    if what == "boot":
        lab.up(lab.size(), only=host.name)
        return
    if not host.pid():
        sys.exit(f"lab: {host.name} is down")
    faults = Faults(host)
    port = f"v{host.number}"
    note, done = {what: "".join(args)}, None
    if what in ("kill", "crash", "shutdown"):
        end(lab, host, what)
        return
    if what in ("link-down", "link-up"):
        lab.in_switch(f"link set {port} {what[5:]}")
        done = "link-down"
    elif what in ("if-down", "if-up"):
        host.run("ip", "link", "set", "eth0", what[3:])
        done = "if-down"
    elif what in ("freeze", "thaw"):
        lab.freeze(host, int(what == "freeze"))
        done = "freeze"
    elif what in ("sshd-stop", "sshd-hang"):
        host.script(f'kill {"" if what == "sshd-stop" else "-STOP"} "$(cat /run/sshd.pid)"')
    elif what == "sshd-start":
        host.script(SSHD_START)
        note = {"sshd-stop": None, "sshd-hang": None}
    elif what in ("dns", "dns-off"):
        here = os.path.join(os.path.dirname(__file__), "lab_dns.py")
        host.run("bash", "-c", NAMES if what == "dns" else NAMES_OFF, here, *args)
        done = "dns"
    elif what in ("drop", "undrop", "delay", "loss", "rate", "clear"):
        note = {"undrop": {"drop": None}, "clear": dict.fromkeys(CABLE),
                "drop": {"drop": (args or ["both"])[0]},
                "delay": {"delay": (args or ["0"])[0], "jitter": (args + ["0", "0"])[1]},
                }.get(what) or {what: args[0]}
    elif what == "mtu":
        note = {"mtu": f"{args[0]} {lab.host(args[1]).mac()}"}
    elif what in ("readonly", "noexec", "full"):
        host.script(IN_PLACE, what, *args)
        note = {f"{what} {args[0]}": ""}
    elif what == "slow":
        slow(host, *args)
        note = {f"slow {args[0]}": "".join(args[1:])}
    elif what in ("stall", "unstall"):
        host.script(f'kill -{"STOP" if what == "stall" else "CONT"} "$(cat {PID_FILE})"')
        note, done = {f"stall {args[0]}": ""}, f"stall {args[0]}"
    elif what == "mend":
        host.script(f'kill -CONT "$(cat {PID_FILE})" 2>/dev/null; umount -l "$1"', args[0])
        note = {k: None for k in faults.known if k.endswith(" " + args[0])}
    else:
        sys.exit(f"lab: no fault '{what}'; `lab fault --help` lists them")
    if done and what not in (done, done.split()[0]):
        note = {done: None}
    faults.set(**note)
    if set(note) & set(CABLE):
        cable(lab, host, faults)
