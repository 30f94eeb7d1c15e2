"""--ui, --metrics and --top: what they show, to whom, and that the job is not affected."""

import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import stat
import time
import urllib.error
import urllib.request

import launch

# a training run: SECONDS are long enough for a browser on a busy machine, tests end it
SCRIPT = """
i=0
while [ $i -lt 3000 ]; do
    i=$((i+1)); echo "step $i/3000 loss 0.$((9000-i)) lr=1e-3"
    [ $i = 3 ] && echo "careful <b>&amp;" >&2
    sleep 0.05
done
"""

# Ranks with a flight recorder, as PyTorch 2.15: rank 0 waits in the default group, rank 2 in one of
# ranks 0 and 2, rank 1 in none.
RECORDER = """
import json, os, socket, threading, time
rank, stem = int(os.environ["RANK"]), f"{os.environ['DDPRUN_DIAGNOSE']}.{os.getpid()}"
made = time.time_ns()

def entry(group, number, retired):
    return {"collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[9]], "is_p2p": False,
            "pg_id": group, "process_group": [str(group), "undefined" if group else "default_pg"],
            "profiling_name": "gloo:all_reduce", "retired": retired, "time_created_ns": made}

calls = [[entry(0, 3, True), entry(0, 4, False)], [entry(0, 3, True)], [entry(0, 3, True), entry(1, 1, False)]]
counts = {"0": [3, 4 if rank == 0 else 3], "1": [0, rank // 2]}
body = json.dumps({"entries": calls[rank], "pg_status": {
    group: {"last_completed_collective": str(done), "last_enqueued_collective": str(entered)}
    for group, (done, entered) in counts.items()}}, separators=(",", ":")).encode()
with open(stem + ".groups", "w") as f:
    f.write("0 \\n.\\n1 0,2\\n.\\n")
listener = socket.socket(socket.AF_UNIX)
listener.bind(stem + ".sock")
listener.listen()
print("up", os.environ.get("TORCH_FR_BUFFER_SIZE"), flush=True)
while True:
    peer = listener.accept()[0]
    peer.recv(4096)
    time.sleep(0.4 * rank)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + body)
    peer.close()
"""


def fetch(url, token=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", "Bearer " + token)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def url_of(job):
    """The page's address and its secret."""
    found = launch.wait_until(
        lambda: re.search(r"ddprun: (http://127.0.0.1:\d+/)\?t=([0-9a-f]{32})\n", job.err))
    if not found:
        raise AssertionError(job.err)
    return found.groups()


class WatchTest(launch.LaunchTest):
    def setUp(self):
        super().setUp()
        os.environ["XDG_RUNTIME_DIR"] = self.folder.name

    def start_ui(self, *args, np=2, script=SCRIPT):
        job = self.start_sh(np, script, "--ui", *args)
        return job, *url_of(job)

    def stop(self, job):
        job.signal(signal.SIGTERM)
        job.wait()
        self.assertEqual(job.rc, 143)


class Page(WatchTest):
    def test_requests_need_the_secret_of_the_url(self):
        job, url, token = self.start_ui()
        self.wait_for(job, "from another machine", "err")
        self.assertRegex(job.err, r"ssh -N -L (\d+):127.0.0.1:\1 ")
        for path in ("", "api/status", "api/log?rank=0", "metrics", "?t=", "?t=" + "0" * 32):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                fetch(url + path)
            self.assertEqual(refused.exception.code, 403, path)
        self.assertIn("<title>", fetch(url + "?t=" + token))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            fetch(url + "nothing", token)
        self.assertEqual(refused.exception.code, 404)
        self.stop(job)

    def test_data_of_the_page(self):
        job, url, token = self.start_ui()

        def ask(path):
            return json.loads(fetch(url + path, token))

        status = {}

        def all_measured():
            status.update(ask("api/status") or {})
            return all(status.get("rss", [0])) and (status["last"][0] or "").startswith("step")

        self.assertTrue(launch.wait_until(all_measured), status)
        self.assertEqual((status["state"], len(status["states"])), ("running", 2))
        for name in ("host", "cpu", "cpu_s", "rss", "out", "quiet", "last"):
            self.assertEqual(len(status[name]), 2, name)
        self.assertGreater(min(status["rss"]), 100)
        self.assertRegex(status["last"][0], r"^step \d+/3000 loss")
        events = ask("api/events?from=0")
        self.assertEqual([e["event"] for e in events["events"]][:2], ["job", "plan"])
        self.assertEqual(ask(f"api/events?from={events['next']}")["events"], [])
        self.assertTrue(launch.wait_until(lambda: len(ask("api/series")["loss"]) > 5))
        series = ask("api/series")
        self.assertEqual(set(series), {"step", "progress", "loss", "lr"})
        self.assertEqual([p[1] for p in series["step"]], list(range(1, len(series["step"]) + 1)))
        self.assertEqual(series["loss"][0][1], 0.8999)
        found = []

        def both_found():
            found[:] = sorted(fetch(url + "api/search?q=CAREFUL", token).splitlines())
            return len(found) == 2

        self.assertTrue(launch.wait_until(both_found), found)
        self.assertEqual(found, ["0\tcareful <b>&amp;", "1\tcareful <b>&amp;"])
        log = fetch(url + "api/log?rank=1", token)
        self.assertTrue(log.startswith("step 1/3000 loss 0.8999 lr=1e-3\nstep 2/3000"))
        self.stop(job)

    def test_trainer_reports_as_to_kubeflow(self):
        """As transformers' KubeflowCallback does it, whenever the variables are set."""
        report = self.write("report.py", """
import json, os, time, urllib.request
with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as f:
    token = f.read().strip()
status = {"progressPercentage": 25, "estimatedRemainingSeconds": 90, "metrics": [
    {"name": "loss", "value": "2.5"}, {"name": "current_step", "value": "50"},
    {"name": 'a"b', "value": "nan"}, {"name": "total_steps", "value": "200"}]}
request = urllib.request.Request(
    os.environ["KUBEFLOW_TRAINER_SERVER_URL"], json.dumps({"trainerStatus": status}).encode(),
    {"Authorization": "Bearer " + token, "Content-Type": "application/json"}, method="POST")
print(urllib.request.urlopen(request, timeout=60).status, flush=True)
time.sleep(60)
""")
        job = self.start("-np", 1, "--ui", "--no-preload", "python3", report)
        self.wait_for(job, "200")
        url, token = url_of(job)
        series = json.loads(fetch(url + "api/series", token))
        self.assertEqual({name: points[-1][1] for name, points in series.items()},
                         {"progress": 0.25, "remaining_s": 90, "loss": 2.5, "step": 50, "a_b": None})
        tokens = [n for n in os.listdir(self.path("ddprun")) if n.startswith(".token")]
        self.assertEqual(len(tokens), 1)
        self.assertEqual(os.stat(self.path("ddprun", tokens[0])).st_mode & 0o777, 0o600)
        self.stop(job)
        self.assertFalse(os.path.exists(self.path("ddprun")))

    def test_trainer_gets_an_ipv6_address_in_brackets(self):
        if not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("no IPv6; needs system with IPv6")
        job = self.run_to_end("-np", 1, "--ui", "[::1]:0", "sh", "-c", "echo $KUBEFLOW_TRAINER_SERVER_URL")
        self.assertRegex(job.out, r"^http://\[::1\]:\d+/api/trainer$")

    def test_a_job_runs_without_a_place_for_the_secret(self):
        """Another user may have made /tmp/ddprun-UID."""
        os.mkdir(self.path("ddprun"))
        os.chmod(self.path("ddprun"), 0o755)
        job = self.run_to_end("-np", 1, "--ui", "sh", "-c", "echo ran; [ -z $KUBEFLOW_TRAINER_SERVER_URL ]")
        self.assert_ended(job, 0)
        self.assertEqual(job.out, "ran\n")
        self.assertIn("Trainer reports: '" + self.path("ddprun") + "' must be a directory of yours", job.err)

    def test_collectives_of_ranks_and_who_waits_for_whom(self):
        job = self.start("-np", 3, "--ui", "--no-preload", "python3", self.write("rank.py", RECORDER))
        for rank in range(3):
            self.wait_for(job, f"[{rank}] up 64")  # a short recorder is quickly read
        url, token = url_of(job)
        status = {}

        def both_wait():
            status.update(json.loads(fetch(url + "api/status", token)) or {})
            return len(status.get("waits", [])) == 2

        self.assertTrue(launch.wait_until(both_wait), status)
        waits = sorted((w["ranks"], w["for"], w["in"]) for w in status["waits"])
        self.assertEqual(waits, [("0", "1-2", "all_reduce #4 of the default group"),
                                 ("2", "0", "all_reduce #1 of the group of ranks 0,2")])
        self.assertEqual([(c[0], c[2]) for c in status["call"]],
                         [("all_reduce #4 of the default group", True),
                          ("all_reduce #3 of the default group", False), ("all_reduce #1 of the group of ranks 0,2", True)])
        self.assertGreaterEqual(min(w["s"] for w in status["waits"]), 1)
        self.stop(job)

    def test_a_page_that_is_open_sees_the_end(self):
        go = self.path("go")
        job, url, token = self.start_ui(script=f"until [ -e {go} ]; do sleep 0.1; done; [ $RANK = 0 ]")
        next_event, seen = 0, []
        while "end" not in seen and job.process.poll() is None:
            try:
                fetch(url + "api/status", token)
                news = json.loads(fetch(f"{url}api/events?from={next_event}", token))
            except (urllib.error.URLError, ConnectionError):
                break
            next_event = news["next"]
            seen += [e["event"] for e in news["events"]]
            self.write("go", "")
            time.sleep(0.05)
        self.assertEqual(job.wait(), 1)
        self.assertEqual(seen[-1], "end")

    def test_the_job_survives_the_program_behind_the_page(self):
        job, _, _ = self.start_ui(script="while [ ! -e %s ]; do sleep 0.1; done" % self.path("go"))
        views = launch.wait_until(
            lambda: [p for p, command in launch.marked(job.mark).items() if "view serve" in command])
        self.assertEqual(len(views), 1)
        os.kill(views[0], signal.SIGKILL)
        self.wait_for(job, "the program behind --ui and --metrics has ended", "err")
        self.write("go", "")
        self.assertEqual(job.wait(), 0)

    def test_wrong_addresses_are_one_line(self):
        for option, why in (("--ui=nowhere", "--ui takes ADDRESS:PORT or PORT, not 'nowhere'"),
                            ("--ui=127.0.0.1:", "--ui takes ADDRESS:PORT or PORT"),
                            ("--ui=127.0.0.1:99999", "--ui takes ADDRESS:PORT or PORT"),
                            ("--ui=192.0.2.1:1", "--ui: cannot listen"),
                            ("--metric=(", "--metric '(':")):
            done = self.run_to_end(option, "true")
            self.assertIn(done.rc, (2, 125))
            self.assertIn(why, done.err)
            self.assertEqual(done.err.count("\n"), 1, done.err)


class Metrics(WatchTest):
    def parse(self, text):
        """{name: {labels: value}}; fails for what Prometheus would not read."""
        metrics, types = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                types[line.split()[2]] = line.split()[3]
            elif not line.startswith("# HELP "):
                parts = re.fullmatch(
                    r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)*\})? (NaN|[-+.e0-9]+)', line)
                self.assertTrue(parts, line)
                self.assertIn(parts.group(1), types)
                metrics.setdefault(parts.group(1), {})[parts.group(2) or ""] = float(parts.group(3))
        self.assertTrue({t for t in types.values()} <= {"counter", "gauge"})
        return metrics

    def metrics(self, port):
        try:
            return self.parse(fetch(f"http://127.0.0.1:{port}/metrics"))
        except (urllib.error.URLError, ConnectionError):
            return {}

    def test_dcgm_exporter_sees_the_job_of_a_gpu(self):
        folder = self.path("map")
        os.mkdir(folder)
        with open(f"{folder}/3", "w", encoding="utf-8") as f:
            f.write("other\n")
        show = f"grep -H . {folder}/*; echo $TORCHELASTIC_RUN_ID"
        done = self.sh(2, f"[ $RANK = 1 ] || {{ {show}; }}", env={
            "DCGM_HPC_JOB_MAPPING_DIR": folder, "CUDA_VISIBLE_DEVICES": "0,3,5"})
        self.assert_ended(done, 0)
        *lines, job = [line.removeprefix("[0] ") for line in done.out.splitlines()]
        self.assertEqual(lines, [f"{folder}/0:{job}", f"{folder}/3:other", f"{folder}/3:{job}"])
        texts = [pathlib.Path(folder, name).read_text() for name in ("0", "3")]
        self.assertEqual(texts, ["", "other\n"])
        self.assertEqual(sorted(os.listdir(folder)), ["0", "3"])
        done = self.sh(1, "true", env={"DCGM_HPC_JOB_MAPPING_DIR": "/nowhere",
                                       "CUDA_VISIBLE_DEVICES": "0"})
        self.assert_ended(done, 0)
        self.assertIn("DCGM_HPC_JOB_MAPPING_DIR: cannot write '/nowhere/0': No such file", done.err)
        long = pathlib.Path(folder, "5")
        long.write_text("other\n" * 20000)
        done = self.sh(1, "true", env={"DCGM_HPC_JOB_MAPPING_DIR": folder, "CUDA_VISIBLE_DEVICES": "5"})
        self.assert_ended(done, 0)
        self.assertIn(f"cannot write '{long}': File too large", done.err)
        self.assertEqual(long.read_text(), "other\n" * 20000)

    def test_over_http(self):
        port = launch.free_port()
        job = self.start_sh(2, SCRIPT, "--metrics", f"127.0.0.1:{port}", "--metric", "^step")
        of_ranks = ("process_cpu_time_seconds_total", "process_memory_usage_bytes",
                    "ddprun_output_bytes_total")
        of_output = {'{name="%s"}' % n for n in ("step", "progress", "loss", "lr")}
        found = {}

        def complete():
            found.clear()
            found.update(self.metrics(port))
            return (all(len(found.get(name, ())) == 2 for name in of_ranks)
                    and set(found.get("ddprun_metric", ())) == of_output
                    and found["ddprun_effective_time_ratio"][""] > 0.3)  # the start took time, too

        self.assertTrue(launch.wait_until(complete), found)
        self.assertEqual(found["ddprun_ranks"]['{state="running"}'], 2)
        self.assertEqual(found["ddprun_restarts_total"], {"": 0})
        self.assertEqual(found["ddprun_spawned_jobs"], {'{state="running"}': 0, '{state="ended"}': 0})
        self.assertEqual(found["ddprun_recovery_seconds_total"], {"": 0})
        with self.assertRaises(urllib.error.HTTPError):
            fetch(f"http://127.0.0.1:{port}/api/status")
        self.stop(job)

    def test_jobs_that_ranks_spawn(self):
        port = launch.free_port()
        client = pathlib.Path(__file__).parent / "programs" / "pmi_client.py"
        job = self.start("-np", 1, "--metrics", f"127.0.0.1:{port}",
                         "python3", client, "run", self.path("1"), "python3", client, "run", self.path("0"))
        for running, ended, go in (1, 0, "0"), (0, 1, "1"):
            wanted = {'{state="running"}': running, '{state="ended"}': ended}
            self.assertTrue(launch.wait_until(
                lambda wanted=wanted: self.metrics(port).get("ddprun_spawned_jobs") == wanted))
            self.write(go, "")
        job.wait()
        self.assert_ended(job, 0)

    @launch.needs_gpus
    def test_gpus(self):
        """By a stand-in for NVML."""
        port = launch.free_port()
        job = self.start_sh(1, "sleep 60", "--metrics", f"127.0.0.1:{port}", command=self.with_gpus(),
                            env={"LD_LIBRARY_PATH": os.path.dirname(os.environ["FAKE_NVML"])})
        self.assertTrue(launch.wait_until(lambda: "hw_gpu_utilization_ratio" in self.metrics(port)))
        found = self.metrics(port)
        host = f',host="{os.uname().nodename}"}}'
        self.assertEqual(found["hw_gpu_utilization_ratio"],
                         {'{gpu="0"' + host: 0.73, '{gpu="1"' + host: 0})
        self.assertEqual(set(found["hw_gpu_memory_usage_bytes"].values()), {10 << 30})
        self.assertEqual(set(found["hw_gpu_memory_limit_bytes"].values()), {80 << 30})
        self.stop(job)

    def test_cpu_time_of_orphans_is_kept(self):
        port, go = launch.free_port(), self.path("go")
        busy = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done"
        script = f"( ({busy}; sleep 60) & until [ -e {go} ]; do sleep 0.1; done ); echo orphaned; sleep 60"
        job = self.start_sh(1, script, "--metrics", f"127.0.0.1:{port}")

        def read(name):
            return max(self.metrics(port).get(name, {"": 0}).values())

        def used():
            return read("process_cpu_time_seconds_total")

        def uptime():
            return read("process_uptime_seconds")

        self.assertTrue(launch.wait_until(lambda: used() > 0.1))
        before = used()
        self.write("go", "")
        self.wait_for(job, "orphaned", "out")
        orphaned = uptime()
        self.assertTrue(launch.wait_until(lambda: uptime() > orphaned + 2))  # a sample each second
        self.assertGreaterEqual(used(), before)
        self.stop(job)

    def test_without_gpus_their_program_is_not_run(self):
        port = launch.free_port()
        job = self.start_sh(1, "sleep 60", "--metrics", f"127.0.0.1:{port}", env={
            "LD_LIBRARY_PATH": os.path.dirname(os.environ["FAKE_NVML"]), "CUDA_VISIBLE_DEVICES": ""})
        self.assertTrue(launch.wait_until(lambda: self.metrics(port).get("system_memory_usage_bytes")))
        self.assertNotIn("ddprun-gpus", " ".join(launch.marked(self.mark).values()))
        self.stop(job)

    def test_a_port_alone_is_on_the_loopback(self):
        """127.0.0.2 is this machine, too, but not the address that is listened at."""
        for option, everywhere in (("{}", False), (":{}", False), ("0.0.0.0:{}", True)):
            port = launch.free_port()
            job = self.start_sh(1, "sleep 60", "--metrics", option.format(port))
            self.assertTrue(launch.wait_until(lambda: self.metrics(port)))
            with socket.socket() as s:
                self.assertEqual(s.connect_ex(("127.0.0.2", port)) == 0, everywhere, option)
            self.stop(job)

    def test_an_address_that_is_none_is_no_file(self):
        for address in ("x:y", "70000", "127.0.0.1:"):
            done = self.sh(1, "true", "--metrics", address)
            self.assert_ended(done, 2)
            self.assertEqual(done.err, f"ddprun: --metrics takes ADDRESS:PORT or PORT, not '{address}'\n")

    def test_an_option_or_a_negative_number_is_no_file(self):
        for text in ("-1", "-", "--ui"):
            done = self.sh(1, "true", "--metrics", text)
            self.assert_ended(done, 2)
            self.assertEqual(done.err, "ddprun: --metrics takes ADDRESS:PORT, PORT or a FILE, not "
                                       f"'{text}' (try ddprun --help)\n")

    def test_in_a_file(self):
        file = self.path("ddprun.prom")
        done = self.sh(2, "sleep 1.5", "--metrics", file)
        self.assert_ended(done, 0)
        with open(file, encoding="utf-8") as f:
            self.assertIn("ddprun_job_info", self.parse(f.read()))
        self.assertEqual([n for n in os.listdir(self.folder.name) if "part" in n], [])

    def test_a_file_that_is_not_written_is_told(self):
        """The program that writes it stands still."""
        file, stopped = self.path("ddprun.prom"), self.path("stopped")
        job = self.start_sh(1, f"echo up; until [ -e {stopped} ]; do sleep 0.05; done", "--metrics", file)
        self.wait_for(job, "up")
        view, = (pid for pid, line in launch.marked(self.mark).items() if "ddprun-view serve" in line)
        os.kill(view, signal.SIGSTOP)
        with open(stopped, "w", encoding="utf-8"):
            pass
        job.wait()
        self.assert_ended(job, 0)
        self.assertIn(f"ddprun: warning: --metrics: the end of the job is not in '{file}', as it ", job.err)

    def test_the_loss_of_rank_0_without_an_expression(self):
        file = self.path("ddprun.prom")
        done = self.sh(2, "echo loss=0.$((RANK + 4)); sleep 1.5", "--metrics", file)
        self.assert_ended(done, 0)
        with open(file, encoding="utf-8") as f:
            found = self.parse(f.read())["ddprun_metric"]
        self.assertEqual(list(found.values()), [0.4], found)

    def test_a_long_expression(self):
        file = self.path("ddprun.prom")
        done = self.sh(1, "echo step=5; sleep 1.5", "--metrics", file, "--metric", "step" + "|never" * 2000)
        self.assert_ended(done, 0)
        with open(file, encoding="utf-8") as f:
            self.assertEqual(list(self.parse(f.read())["ddprun_metric"].values()), [5])

    def test_more_connections_than_descriptors(self):
        port = launch.free_port()
        limited = ["bash", "-c", 'ulimit -n 64; exec "$0" "$@"', launch.DDPRUN]
        job = self.start("--metrics", f"127.0.0.1:{port}", "-np", 1, "sh", "-c", "echo up; sleep 60",
                         command=limited)
        self.wait_for(job, "up")
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        time.sleep(2)
        for s in strangers:
            s.close()
        self.assertTrue(launch.wait_until(lambda: "ddprun_job_info" in self.metrics(port)))
        self.stop(job)
        self.assertNotIn("accept", job.err)

    def test_a_file_in_a_missing_folder(self):
        """One line, though it is written again and again; and an event."""
        file, events = self.path("missing", "x.prom"), self.path("events")
        job = self.start_sh(1, "sleep 60", "--metrics", file, "--events", events)
        line = f"cannot write '{file}' (--metrics): No such file or directory"

        def emitted():
            with open(events, encoding="utf-8") as f:
                return line in f.read()

        self.assertTrue(launch.wait_until(lambda: os.path.exists(events) and emitted()), job.err)
        self.stop(job)
        self.assertEqual(job.err.count("--metrics"), 1, job.err)
        self.assertIn(f"ddprun: warning: {line}\n", job.err)

    def test_a_file_that_cannot_be_written(self):
        os.mkdir(self.path("folder"))
        done = self.sh(1, "true", "--metrics", self.path("folder"))
        self.assert_ended(done, 0)
        self.assertEqual(done.err, f"ddprun: warning: cannot write '{self.path('folder')}' (--metrics): "
                                   "Is a directory\n")
        self.assertFalse(os.path.exists(self.path("folder.part")))

    def test_a_device_or_fifo_is_not_replaced(self):
        file = self.path("fifo")
        os.mkfifo(file)
        done = self.sh(1, "sleep 1", "--metrics", file)
        self.assert_ended(done, 0)
        self.assertEqual(done.err, f"ddprun: warning: cannot write '{file}' (--metrics): it is no file, and "
                                   "would be replaced by one\n")
        self.assertTrue(stat.S_ISFIFO(os.stat(file).st_mode))


class Top(WatchTest):
    def test_one_job(self):
        done = self.run_to_end("--top", "1", "2")
        self.assertEqual((done.rc, done.err), (2, "ddprun: --top shows one job: '2' cannot follow\n"))
        done = self.run_to_end("--top", "--log-level", "info")
        self.assertNotIn("'info'", done.err)

    def test_a_pid_that_the_id_of_another_job_begins_with(self):
        job = self.start_sh(1, SCRIPT)
        self.wait_for(job, "step 5/")
        other = socket.socket(socket.AF_UNIX)
        other.bind(self.path("ddprun", f"1-{job.process.pid}abcdef"))
        other.listen()
        done = self.run_to_end("--top", job.process.pid)
        self.assert_ended(done, 0)
        self.assertIn("ranks 1: 1 run", done.out)
        other.close()
        os.unlink(self.path("ddprun", f"1-{job.process.pid}abcdef"))
        self.stop(job)

    def test_without_a_job(self):
        done = self.run_to_end("--top", "99999999")  # beyond all pids: other tests have jobs
        self.assertEqual(
            (done.rc, done.err), (2, "ddprun: no running job '99999999' of yours on this machine; if its "
                                  "ddprun runs on another: ssh HOST, or in Slurm srun --overlap --jobid "
                                  "JOB\n"))

    def test_a_screen_of_80_columns(self):
        job = self.start_sh(3, SCRIPT)
        for rank in range(3):
            self.wait_for(job, f"[{rank}] step 5/")
        measured = re.compile(r" +[012] \S+ +(runs|sleeps|in I/O) +\d+ +[\d.]+M +\d+s  step \d+/3000")
        lines = []

        def all_measured():
            done = self.run_to_end("--top", job.process.pid)
            self.assert_ended(done, 0)
            lines[:] = done.out.splitlines()
            return sum(bool(measured.match(line)) for line in lines) == 3

        self.assertTrue(launch.wait_until(all_measured), lines)
        self.assertEqual(sum(bool(re.match(r" +[012] ", line)) for line in lines), 3)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertIn("ranks 3: 3 run, 0 exited, 0 failed", lines)
        self.assertEqual(sum(bool(re.match(r"step \d+ .*loss 0\.\d+  lr 0\.001$", line)) for line in lines), 1, lines)
        self.stop(job)

    def test_no_control_character_reaches_the_terminal(self):
        job = self.start_sh(1, "printf 'a\\033[2Jb\\302\\2332Jc\\302\\251\\n'; sleep 60")
        self.wait_for(job, "c")
        self.assertIn("  a?[2Jb?2Jc\u00a9\n", self.run_to_end("--top", job.process.pid).out)
        self.stop(job)

    def test_who_waits_for_whom(self):
        job = self.start("-np", 3, os.environ["HANG_GROUP"])
        for rank in range(3):
            self.wait_for(job, f"[{rank}] up")
        shown = []

        def waits():
            done = self.run_to_end("--top", job.process.pid)
            self.assert_ended(done, 0)
            shown[:] = done.out.splitlines()
            return any(re.fullmatch(r"ranks 0,2 wait \d+s in all_reduce #4 of the default group for rank 1",
                                    line) for line in shown)

        self.assertTrue(launch.wait_until(waits), shown)
        rows = [bool(re.match(rf" +{rank} .* waits \d+s in all_reduce #4 of", line))
                for rank in range(3) for line in shown if re.match(rf" +{rank} ", line)]
        self.assertEqual(rows, [True, False, True], shown)
        self.assertLessEqual(max(map(len, shown)), 80)
        self.stop(job)

    def test_in_a_terminal(self):
        job = self.start_sh(3, SCRIPT)
        self.wait_for(job, "step 5/")
        main, sub = pty.openpty()
        top = self.start("--top", job.process.pid, stdout=sub, stderr=sub,
                         command=["sh", "-c", f'exec "$0" "$@" <{os.ttyname(sub)}', launch.DDPRUN])
        os.close(sub)
        screen, pressed = "", ""
        deadline = time.monotonic() + launch.DEADLINE
        while time.monotonic() < deadline and select.select([main], [], [], launch.DEADLINE)[0]:
            try:
                screen += os.read(main, 65536).decode(errors="replace")
            except OSError:  # it has ended
                break
            if "q quit" in screen and not pressed:
                os.write(main, b"ss")  # one read has both
                pressed = "s"
            if "by memory" in screen and pressed == "s":  # a read ends within an arrow; F1 is no Esc
                os.write(main, 11 * b"\033[B" + b"\033OP" + b"s")
                pressed = "more"
            if "by silence" in screen and pressed == "more":
                os.write(main, b"q")
                pressed = "q"
        self.assertEqual(top.wait(), 0)
        self.assertEqual(pressed, "q", screen)
        self.assertTrue(screen.startswith("\033[?1049h\033[?25l\033[?7l"))  # without line wrap
        self.assertIn("\033[?7h\033[?25h\033[?1049l", screen)
        os.close(main)
        self.stop(job)


if __name__ == "__main__":
    launch.main()
