# Copyright: as the rest of ddprun, Apache-2.0
"""Recipe for Spack: a repository of one's own, with this file in packages/ddprun/, then
`spack dev-build ddprun@main` in the source folder."""
from spack.package import *


class Ddprun(MesonPackage):
    """Starts distributed programs on one machine or many, with a rendezvous store."""

    license("Apache-2.0")
    maintainers()

    version("main")

    variant("pmix", default=True, description="serve PMIx to MPI programs")
    variant("cuda", default=False, description="build the engine for NVIDIA GPUs")
    variant("images", default=True, description="let ddp-train read PNG and JPEG files")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.8:", type=("build", "run"))
    depends_on("libevent@2.1:")
    depends_on("hwloc@2.4:")
    depends_on("libsodium")
    depends_on("jansson")
    depends_on("inih")
    depends_on("uthash")
    depends_on("zlib-api")
    depends_on("libpng", when="+images")
    depends_on("jpeg", when="+images")
    depends_on("pmix@4.1:", when="+pmix")
    depends_on("cuda", when="+cuda")

    def meson_args(self):
        def given(variant):
            return "enabled" if self.spec.satisfies("+" + variant) else "disabled"

        return [
            "-Dtests=false",
            "-Dspank=disabled",
            "-Dmpi=disabled",
            "-Dpmix=" + given("pmix"),
            "-Dcuda=" + given("cuda"),
            "-Dimages=" + given("images"),
        ]
