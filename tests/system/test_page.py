"""The page of --ui in a real browser: what it shows, its keys, narrow and with 1,024 ranks."""

import json
import os
import select
import socket
import subprocess
import sys
import time

import browser
import fake_ssh
import launch
import test_watch

VIEW = os.path.join(os.path.dirname(launch.DDPRUN), "ddprun-view")

# The shortest pause before each function that is called later, in ms
PAUSES = """{
  const plain = setTimeout
  window.pauses = {}
  window.setTimeout = (f, ms) => {
    pauses[f.name] = Math.min(pauses[f.name] ?? ms, ms)
    return plain(f, ms)
  }
}"""

# Two reads of the events fail, and those of the numbers until then; the next one of the events
# waits until the numbers have been read again.
CUT = """{
  const whole = fetch
  let failed = 0, readAgain
  const again = new Promise(done => readAgain = done)
  window.fetch = async (path, options) => {
    const events = path.startsWith("api/events"), numbers = path === "api/series"
    if (failed < 2 && (events || numbers)) { failed += events; throw new Error("cut") }
    if (numbers) { window.reads++; readAgain() }
    if (events) {
      await again
      window.said ||= document.getElementById("facts").innerText
    }
    return whole(path, options)
  }
  window.reads = 0
}"""


class Page(test_watch.WatchTest):
    shots = os.environ.get("SCREENSHOTS")  # a folder to look at

    def shot(self, page, name):
        if self.shots:
            page.screenshot(os.path.join(self.shots, name + ".png"))

    def test_ranks_logs_keys_and_a_failure(self):
        stop = self.path("stop")
        script = test_watch.SCRIPT.replace("sleep 0.05", f"sleep 0.05; [ -e {stop}$TORCHELASTIC_RESTART_COUNT ] && [ $RANK = 2 ] && "
                                "{ echo 'RuntimeError: <i>luck</i>' >&2; exit 3; }")
        job, url, token = self.start_ui("--max-restarts", "1", np=4, script=script)
        page = browser.Browser(url + "?t=" + token)
        self.addCleanup(page.close)
        page.run(PAUSES)
        page.wait("document.querySelectorAll('.cell[data-s=r]').length === 4")
        page.wait("document.getElementById('log').textContent.includes('step 9/3000')")
        page.wait("document.getElementById('facts').innerText.includes('loss 0.')")
        self.shot(page, "page")
        # while they are few, numbers are read more often than the state
        page.wait("pauses.readSeries < pauses.tick")
        # keys: right moves to rank 1, slash searches its log
        page.run("document.querySelector('.cell').focus()")
        page.key("ArrowRight")
        page.wait("document.activeElement.dataset.r === '1'")
        page.wait("document.getElementById('logname').textContent === 'Rank 1'")
        page.key("/", "/")
        page.wait("document.activeElement.id === 'search'")
        for letter in "careful":
            page.key(letter, letter)
        page.wait("document.querySelector('#log mark')?.textContent === 'careful'")
        self.assertEqual(page.run("document.getElementById('log').textContent"), "careful <b>&amp;\n")
        page.key("Escape")
        page.wait("document.getElementById('log').textContent.includes('step 1/3000')")
        # a narrow window does not scroll sideways
        page.resize(360, 740)
        page.wait("document.documentElement.scrollWidth <= 360")
        self.shot(page, "narrow")
        page.resize(1200, 900)
        self.write("stop0", "")
        page.wait("document.getElementById('facts').innerText.includes('2 of 2')")
        page.wait("document.querySelector('li.bad') !== null")
        self.assertIn("rank 2", page.run("document.querySelector('li.bad').innerText"))
        self.assertEqual(page.run("document.querySelectorAll('i:not(#line *), #log b').length"), 0)
        self.write("stop1", "")
        page.wait("document.querySelectorAll('#line i').length === 2")
        page.wait("document.getElementById('facts').innerText.includes('exit code 3')")
        page.dark()
        self.shot(page, "failed")
        self.assertEqual(job.wait(), 3)

    def test_a_rank_that_a_spare_takes_over(self):
        """It is in the row of its new host."""
        ssh, go = self.write("ssh", fake_ssh.FAKE_SSH, 0o755), self.path("go")
        script = (f"[ $FAKE_HOST != n2 ] || {{ until [ -e {go} ]; do sleep 0.1; done; "
                  "read -r _ _ _ up _ </proc/$PPID/stat; kill -9 $up $PPID; }; exec sleep 60")
        job = self.start("--ui", "--ssh", ssh, "-H", "n1:1,n2:1,n3:1", "--spares", 1, "sh", "-c", script,
                         env={"FAKE_LOG": self.path("log")})
        url, token = test_watch.url_of(job)
        page = browser.Browser(url + "?t=" + token)
        self.addCleanup(page.close)
        row = ("[...document.querySelectorAll('.cell')]"
               ".map(c => c.closest('.host').querySelector('b').textContent).join()")
        page.wait(row + " === 'n1,n2'")
        self.write("go", "")
        page.wait(row + " === 'n1,n3'")
        self.stop(job)

    def test_1024_ranks_do_not_stutter(self):
        """A stand-in for the launcher: 32 hosts of 32 ranks, all of whose numbers change."""
        nranks, nhosts = 1024, 32
        ours, its = socket.socketpair()
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/?t=secret"
        command = f'exec "$0" serve 63<&{listener.fileno()}'
        view = subprocess.Popen(["bash", "-c", command, VIEW], stdin=its,
                                stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()],
                                env={**os.environ, "DDPRUN_TEST_MARK": self.mark})
        its.close()
        listener.close()
        self.addCleanup(ours.close)

        def say(message):
            ours.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

        say({"ui": True, "metrics": False, "token": "secret", "ms": 0})
        say({"v": 1, "event": "plan", "t": 0, "attempt": 1, "ranks": nranks})
        ours.settimeout(60)

        def serve(page_says, deadline=120):
            """Answer requests for the status until the page says so."""
            end, turn = time.monotonic() + deadline, 0
            while time.monotonic() < end:
                waiting = select.select([ours], [], [], 0.05)[0]
                for _ in range(ours.recv(65536).count(b"\n") if waiting else 0):
                    turn += 1
                    say({"is": "status", "job": "simulated", "state": "running", "t": turn,
                         "attempt": 1, "attempts": 1, "command": "train", "failure": None,
                         "hosts": [{"host": f"node{h:03}", "state": "up", "cpu": (h + turn) % 100,
                                    "mem": [h * 1000, 10**8], "gpus": [[turn % 100, 100, 80000]] * 8}
                                   for h in range(nhosts)],
                         "states": "".join("RSRD"[(r + turn) % 4] for r in range(nranks)),
                         "host": [r // 32 for r in range(nranks)],
                         "cpu": [(r * 7 + turn * 13) % 100 for r in range(nranks)],
                         "cpu_s": [turn] * nranks, "rss": [10**6 + r for r in range(nranks)],
                         "out": [turn * r for r in range(nranks)], "quiet": [0.1] * nranks,
                         "last": [f"step {turn}"] * nranks,
                         "call": [[f"all_reduce #{turn} of the default group", turn / 10, r != 7]
                                  for r in range(nranks)],
                         "waits": [{"ranks": f"0-6,8-{nranks - 1}", "for": "7",
                                    "in": "all_reduce #4 of the default group", "s": turn / 10}]})
                if page_says and page.run(page_says):
                    return
            self.fail(f"not true: {page_says}")

        page = browser.Browser(url)
        self.addCleanup(page.close)
        serve("document.querySelectorAll('.cell').length === 1024")
        worst = before = 0
        for turn in range(3, 9):
            serve(f"+document.body.dataset.ticks >= {turn}")
            spent = page.cpu_ms()
            if turn > 3:
                worst = max(worst, spent - before)
            before = spent
        print(f"1,024 ranks: at most {worst:.1f} ms of CPU time in a turn")
        now = page.run("document.getElementById('waitnow').innerText")
        self.assertRegex(now, r"ranks 0-6,8-1023 wait in all_reduce #4 of the default group for [\d.]+ s; "
                              r"not arrived: rank 7")
        self.assertEqual(page.run("document.querySelectorAll('.cell.waits').length"), nranks - 1)
        self.assertEqual(page.run("document.querySelector('.cell.awaited').dataset.r"), "7")
        self.assertIn("in all_reduce", page.run("document.getElementById('rankfacts').innerText"))
        page.run("document.querySelector('#waitnow button').focus()")
        serve(f"!document.getElementById('waitnow').innerText.includes({now.partition(';')[0]!r})")
        self.assertEqual(page.run("document.activeElement.innerText"), "rank 7")
        page.run("document.querySelector('#waitnow button').click()")
        page.wait("document.getElementById('logname').textContent === 'Rank 7'")
        self.assertIn("last collective", page.run("document.getElementById('rankfacts').innerText"))
        say({"v": 1, "event": "hang", "t": 9, "attempt": 1, "reason": "hang", "kind": "absent",
             "ranks": [5], "sentences": ["1,023 ranks wait in all_reduce #4; rank 5 is in load()"]})
        serve("document.querySelector('.cell.late')?.dataset.r === '5'")
        self.assertIn("rank 5 is in load()", page.run("document.getElementById('waits').innerText"))
        self.shot(page, "1024")
        # the next attempt shows its own waits, without the report of the one before
        say({"v": 1, "event": "restart", "t": 10, "attempt": 2, "of": 2})
        serve("document.querySelectorAll('#line i').length === 2 && "
              "!document.getElementById('waits').hidden")
        waits = page.run("document.getElementById('waits').innerText")
        self.assertIn("not arrived: rank 7", waits)
        self.assertNotIn("load()", waits)
        # a connection that is lost for two reads: all goes on
        page.run(CUT)
        serve("reads > 2 && !document.getElementById('facts').innerText.includes('no connection')")
        self.assertIn("no connection", page.run("said"))
        view.kill()
        view.wait()


if __name__ == "__main__":
    if not browser.PROGRAM:
        print("skipped: no browser; needs package chromium")
        sys.exit(77)
    launch.main()
