"""Every partition of every site file, submitted to a real scheduler that has the site's limits: as
many ranks must run as the script promises."""

import configparser
import glob
import os
import re

import hosts
from hosts import main
from test_sched import set_up
from test_scripts import ScriptTest

SITES = os.path.join(hosts.SOURCE, "templates", "site")


def read_site(name):
    """The partitions of a site file, by name."""
    site = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    site.read(os.path.join(SITES, name + ".ini"), encoding="utf-8")
    return site["site"], {s.split(" ", 1)[1]: site[s] for s in site.sections() if s != "site"}


def sites_of(scheduler):
    """Names of the sites with this scheduler that know partitions."""
    names = [os.path.basename(path)[:-4] for path in sorted(glob.glob(SITES + "/*.ini"))]
    return [name for name in names
            if read_site(name)[0]["scheduler"] == scheduler and read_site(name)[1]]


class SiteTest(ScriptTest):
    most, jobs = 2, 0  # nodes that are to be had at once; jobs that ran

    def made(self, site, partition, options, program="true", **how):
        return self.alice(f"{hosts.LAB_HOSTS.ddprun} --site {site} --partition {partition} --account a1 "
                          f"{options} --submit --dry-run {program} 2>&1 | "
                          "grep -v ' was closed in '; exit ${PIPESTATUS[0]}", **how)

    def run_job(self, site, partition, options):
        """As many ranks as the script's title says run, and on as many nodes."""
        self.jobs += 1
        name = f"j{self.jobs}"
        text = self.made(site, partition, f"--job-name {name} {options}",
                         "sh -c 'echo $RANK of $WORLD_SIZE on $(hostname)'")
        ranks, nodes = map(int, re.search(r"^# \S+: (\d+) ranks? on (\d+) node", text,
                                          re.MULTILINE).groups())
        # the lab has no modules
        self.write(name + ".sh", re.sub(r"^(source .*|module .*)\n", "", text, flags=re.MULTILINE))
        logs = f"logs/{name}-{self.submit(name + '.sh')}"
        self.wait_for(f"{logs}/job.log", "ended with 0$")
        said = [self.said(f"{logs}/rank.{r}.out").split() for r in range(ranks)]
        self.assertEqual([(s[0], s[2]) for s in said], [(str(r), str(ranks)) for r in range(ranks)])
        self.assertEqual(len({s[4] for s in said}), nodes)
        self.assertEqual(self.said(f"{logs}/rank.{ranks}.out"), "")

    def run_partitions(self, site):
        """Each for its longest time, on one node and on several."""
        for partition, p in read_site(site)[1].items():
            for nodes in {1, min(self.most, int(p.get("nodes", self.most)))}:
                with self.subTest(site=site, partition=partition, nodes=nodes):
                    self.run_job(site, partition, f"-N {nodes} --time {p.get('time', '1h')}")


class Slurm(SiteTest):
    def submit(self, name):
        return self.alice(f"sbatch --parsable {name}").strip()

    def check_limits(self, site):
        """What ddprun refuses is what this Slurm refuses."""
        for partition, p in read_site(site)[1].items():
            over = []
            if "time" in p:
                over.append((f"--time {p['time']}1m", f"--time={int(p['time'][:-1]) * (24 if 'd' in p['time'] else 1)}:01:00"))
            if int(p.get("nodes", 9)) < self.most:  # else the lab has no hosts to refuse
                over.append((f"-N {self.most}", f"-N {self.most}"))
            for ours, theirs in over:
                with self.subTest(site=site, partition=partition, asked=ours):
                    self.assertIn(f"a job in {partition} ", self.made(site, partition, ours, fails=True))
                    self.assertIn("allocation failure", self.alice(
                        f"sbatch --test-only -p {partition} {theirs} --wrap true", fails=True))

    def test_every_partition_runs_as_many_ranks_as_promised(self):
        for site in sites_of("slurm"):
            hosts.LAB_HOSTS.env["LAB_SLURM_EXTRA"] = "EnforcePartLimits=ALL"
            hosts.LAB_HOSTS.env["LAB_SLURM_SITE"] = os.path.join(SITES, site + ".ini")
            set_up("slurm", "slurmctld")
            try:
                self.run_partitions(site)
                self.check_limits(site)
            finally:
                hosts.LAB_HOSTS("slurm", "down")
        self.assertGreaterEqual(self.jobs, 20)


# ABCI's qsub turned its resource types into whole nodes by such a verifier (JSV), and refused what
# was beyond their limits. A host of the lab has 8 slots.
VERIFIER = """#!/usr/bin/env python3
import sys
LIMITS = {limits}  # of a job: nodes, seconds, node-seconds
def seconds(text):
    parts = [int(x or 0) for x in text.split(":")]
    return sum(x * 60 ** i for i, x in enumerate(reversed(parts)))
given = {{}}
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "START":
        given = {{}}
        print("STARTED", flush=True)
    elif word == "PARAM":
        given.update([rest.split(" ", 1)])
    elif word == "BEGIN":
        asked = dict(x.split("=") for x in given["l_hard"].split(","))
        kind = next(iter(LIMITS.keys() & asked.keys()))
        n, time = int(asked.pop(kind)), seconds(asked["h_rt"])
        most, longest, product = LIMITS[kind]
        if n > most or time > longest or n * time > product:
            print(f"RESULT STATE REJECT over the limits of {{kind}}", flush=True)
            continue
        print("PARAM l_hard", ",".join(f"{{k}}={{v}}" for k, v in asked.items()))
        print(f"PARAM pe_name whole\\nPARAM pe_min {{8 * n}}\\nPARAM pe_max {{8 * n}}")
        print("RESULT STATE CORRECT", flush=True)
    elif word == "QUIT":
        sys.exit()
"""


class GridEngine(SiteTest):
    @classmethod
    def setUpClass(cls):
        set_up("sge", "sge_qmaster")
        types = " ".join(t for site in sites_of("sge") for t in read_site(site)[1])
        hosts.LAB_HOSTS(
            "exec", "node001", "bash", "-c",
            f"qconf -sc | sed '/^#/d' >/run/complex; for r in {types}; do "
            "echo $r $r INT '<=' YES NO 0 0; done >>/run/complex; qconf -Mc /run/complex; "
            "qconf -sp mpi_4 | sed 's/mpi_4/whole/; s/^\\(allocation_rule *\\).*/\\18/' >/run/whole; "
            "qconf -Ap /run/whole; qconf -aattr queue pe_list whole all.q")

    @classmethod
    def tearDownClass(cls):
        hosts.LAB_HOSTS("sge", "down")

    def submit(self, name):
        return self.alice(f"qsub -terse -jsv ./verifier -v SGE_LOCALDIR=/tmp {name}").strip()

    def write_verifier(self, site):
        limits = {name: (int(p["nodes"]), int(p["time"][:-1]) * 3600,
                         int(p.get("node-hours", 1000000)) * 3600)
                  for name, p in read_site(site)[1].items()}
        os.chmod(self.write("verifier", VERIFIER.format(limits=limits)), 0o755)

    def test_every_resource_type_runs_as_many_ranks_as_promised(self):
        for site in sites_of("sge"):
            self.write_verifier(site)
            self.run_partitions(site)
            for partition, p in read_site(site)[1].items():
                with self.subTest(site=site, partition=partition):
                    hours = int(p["time"][:-1])
                    self.assertIn(f"a job in {partition} runs for at most", self.made(
                        site, partition, f"--time {hours}h1m", fails=True))
                    self.write("over.sh", "#$ -S /bin/bash\n:\n")
                    self.assertIn("over the limits", self.alice(
                        f"qsub -jsv ./verifier -l {partition}=1,h_rt={hours}:01:00 over.sh", fails=True))
        self.assertGreaterEqual(self.jobs, 9)


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main()
