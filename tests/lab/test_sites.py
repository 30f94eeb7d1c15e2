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
        self.wait_for(f"{logs}/job.log", "ended with 0$", 60)
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


def setUpModule():
    hosts.set_up()


def tearDownModule():
    hosts.tear_down()


if __name__ == "__main__":
    main()
