"""A headless Chromium, driven over its debugging pipe: JSON ended by a zero byte, both ways."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE = 60.0


class Browser:
    def __init__(self, url, width=1200, height=900):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-browser-")
        to_read, self.to = os.pipe()
        self.fro, from_write = os.pipe()
        shell = 'exec "$0" "$@" 3<&{} 4>&{}'.format(to_read, from_write)
        self.process = subprocess.Popen(
            ["sh", "-c", shell, PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Performance.enable", timeDomain="threadTicks")
        self.call("Page.navigate", url=url)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE
        while True:
            *whole, self.buffer = self.buffer.split(b"\0")
            for i, text in enumerate(whole):
                answer = json.loads(text)
                if answer.get("id") == self.number:
                    self.buffer = b"\0".join([*whole[i + 1:], self.buffer])
                    if "error" in answer:
                        raise RuntimeError(f"{method}: {answer['error']}")
                    return answer["result"]
            if not select.select([self.fro], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{method}: no answer from {PROGRAM}")
            data = os.read(self.fro, 1 << 20)
            if not data:
                raise RuntimeError(f"{PROGRAM} has ended")
            self.buffer += data

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, deadline=DEADLINE):
        """Until the expression is true."""
        end = time.monotonic() + deadline
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise AssertionError(f"not true within {deadline} s: {script}\n"
                                     + str(self.run("document.body.innerText"))[:2000])
            time.sleep(0.1)
        return value

    def cpu_ms(self):
        """What the page's thread has computed so far: the machine may be busy with other things."""
        found = {m["name"]: m["value"] for m in self.call("Performance.getMetrics")["metrics"]}
        return found["TaskDuration"] * 1e3

    def key(self, key, text=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def dark(self):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def screenshot(self, path):
        image = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(image))

    def close(self):
        os.close(self.to)
        os.close(self.fro)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        try:
            self.folder.cleanup()
        except OSError:  # a process of it that has not ended yet
            shutil.rmtree(self.folder.name, ignore_errors=True)
