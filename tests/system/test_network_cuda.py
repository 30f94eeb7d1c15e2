"""examples/network_cuda.cu, on an emulated GPU: the losses of examples/network.c, also after a rank was killed."""
import os
import re
import signal

from launch import LaunchTest, main, marked

NETWORK, NETWORK_CUDA = os.environ["NETWORK"], os.environ["NETWORK_CUDA"]


class NetworkCuda(LaunchTest):
    def test_losses_are_those_of_host_memory(self):
        told = []
        for network in (NETWORK, NETWORK_CUDA):
            launch = self.run_to_end("--tag-output=off", "-np", 2, network, "plain", 15)
            self.assert_ended(launch, 0)
            told.append(launch.out)
        self.assertIn("epoch 15: loss", told[0])
        self.assertEqual(told[0], told[1])

    def test_a_killed_rank_goes_on_from_memory(self):
        launch = self.start("--tag-output=off", "-np", 2, "--max-restarts", 1, NETWORK_CUDA, "kept", 30)
        self.wait_for(launch, "epoch 15:")
        os.kill(max(pid for pid, command in marked(self.mark).items() if command.startswith(NETWORK_CUDA)),
                signal.SIGKILL)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertGreaterEqual(int(re.search(r"going on after epoch (\d+)", launch.out)[1]), 13)
        whole = self.run_to_end("--tag-output=off", "-np", 2, NETWORK, "plain", 30)
        lines = [line for line in launch.out.splitlines() if line.startswith("epoch ")]
        self.assertEqual(list(dict.fromkeys(lines)), whole.out.splitlines())


if __name__ == "__main__":
    main()
