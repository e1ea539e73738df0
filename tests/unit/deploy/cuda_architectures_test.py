#!/usr/bin/env python3
"""Which GPUs `deploy/dev install` builds for; nvidia-smi, nvcc, cmake and ninja are shell scripts
here."""
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
ALL = "80;86;89;90;100;120"
NO_GPU = "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9"
NEW_NVCC = "printf 'compute_%s\\n' 75 80 86 87 89 90 100 103 110 120 121"
# Configures as CMake does, in what others read of it, and keeps what it was told.
CMAKE = r"""echo "$*" >> cmake_calls
[[ $1 == --preset ]] || exit 0
mkdir -p build/release && touch build/release/build.ninja
for word in "$@"; do case $word in -DMUSTER_CUDA_ARCHITECTURES=*) chosen=${word#*=} ;; esac; done
{ echo "CUDAToolkit_NVCC_EXECUTABLE:FILEPATH=$NVCC"
  echo "MUSTER_CUDA_ARCHITECTURES:STRING=${chosen-90}"; } > build/release/CMakeCache.txt"""


class CudaArchitecturesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name
        os.mkdir(f"{self.tree}/bin")
        os.mkdir(f"{self.tree}/deploy")
        for path in ("deploy/dev", "deploy/cuda_architectures", "CMakePresets.json"):
            shutil.copy(f"{ROOT}/{path}", f"{self.tree}/{path}")
        self.play("nvcc", NEW_NVCC)
        self.play("nvidia-smi", NO_GPU)
        self.play("dpkg-query", "echo installed")
        self.play("ninja", "exit 0")
        self.play("cmake", CMAKE)

    def play(self, program, script):
        path = f"{self.tree}/bin/{program}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n{script}\n")
        os.chmod(path, 0o755)

    def gpus(self, *rows):
        self.play("nvidia-smi", f"cat << 'END'\n{chr(10).join(rows)}\nEND")

    def run_here(self, *command, **environment):
        path = f"{self.tree}/bin:{os.environ['PATH']}"
        here = {**os.environ, "PATH": path, "NVCC": f"{self.tree}/bin/nvcc", **environment}
        if "MUSTER_CUDA_ARCHITECTURES" not in environment:
            here.pop("MUSTER_CUDA_ARCHITECTURES", None)
        return subprocess.run(command, cwd=self.tree, env=here, capture_output=True, text=True)

    def choose(self, *asked):
        """The list and the sentence."""
        ran = self.run_here("deploy/cuda_architectures", f"{self.tree}/bin/nvcc", *asked)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout.splitlines()

    def refused(self, *asked):
        ran = self.run_here("deploy/cuda_architectures", f"{self.tree}/bin/nvcc", *asked)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        return ran.stderr

    def test_the_gpus_of_the_machine(self):
        self.gpus("NVIDIA A100-SXM4-80GB, 8.0", "NVIDIA A100-SXM4-80GB, 8.0")
        chosen, why = self.choose()
        self.assertEqual(chosen, "80")
        self.assertIn("GPUs of this machine (NVIDIA A100-SXM4-80GB, 8.0)", why)

    def test_several_kinds_of_them(self):
        self.gpus("NVIDIA RTX PRO 6000, 12.0", "NVIDIA L40S, 8.9", "Tesla T4, 7.5")
        chosen, why = self.choose()
        self.assertEqual(chosen, "89;120")
        self.assertIn("(NVIDIA L40S, 8.9; NVIDIA RTX PRO 6000, 12.0)", why)

    def test_a_gpu_between_two_has_the_older_ones_code(self):
        for capability, expected in (("8.7", "86"), ("10.3", "100"), ("12.1", "120"),
                                     ("13.0", "120")):
            self.gpus(f"a GPU, {capability}")
            self.assertEqual(self.choose()[0], expected)

    def test_all_without_one(self):
        for script in (NO_GPU, "exit 0", "echo '[Not Supported], [N/A]'"):
            self.play("nvidia-smi", script)
            chosen, why = self.choose()
            self.assertEqual(chosen, ALL)
            self.assertIn("all GPUs (8.0, 8.6, 8.9, 9.0, 10.0, 12.0), since nvidia-smi lists none",
                          why)

    def test_all_where_those_there_are_too_old(self):
        self.gpus("Tesla V100-SXM2-32GB, 7.0")
        chosen, why = self.choose()
        self.assertEqual(chosen, ALL)
        self.assertIn("older than any that have kernels (Tesla V100-SXM2-32GB, 7.0)", why)

    def test_no_more_than_nvcc_knows(self):
        self.play("nvcc", "printf 'compute_%s\\n' 70 80 86 89 90 90a")  # of CUDA 12.4
        self.assertEqual(self.choose()[0], "80;86;89;90")
        self.gpus("NVIDIA B200, 10.0")
        self.assertEqual(self.choose()[0], "90")  # its text
        self.play("nvcc", "echo compute_70")
        self.assertIn("too old", self.refused())

    def test_what_is_asked_for(self):
        self.gpus("NVIDIA L40S, 8.9")
        self.assertEqual(self.choose("90,80")[0], "80;90")
        self.assertEqual(self.choose("110")[0], "110")
        self.assertEqual(self.choose("all")[0], ALL)
        for wrong in ("75", "sm_90", "8.0", ";"):
            said = self.refused(wrong)
            self.assertIn(f"MUSTER_CUDA_ARCHITECTURES={wrong}: expected all, or some of {ALL}",
                          said)

    def configured(self):
        with open(f"{self.tree}/build/release/CMakeCache.txt", encoding="utf-8") as file:
            return file.read().splitlines()[1]

    def test_install_builds_for_them_and_says_so(self):
        ran = self.run_here("deploy/dev", "install", "somewhere")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("== kernels for all GPUs", ran.stderr)
        self.assertEqual(self.configured(), f"MUSTER_CUDA_ARCHITECTURES:STRING={ALL}")
        self.gpus("NVIDIA L40S, 8.9")
        ran = self.run_here("deploy/dev", "install", "somewhere")
        self.assertIn("== kernels for the GPUs of this machine (NVIDIA L40S, 8.9)", ran.stderr)
        self.assertEqual(self.configured(), "MUSTER_CUDA_ARCHITECTURES:STRING=89")
        ran = self.run_here("deploy/dev", "build", "release", MUSTER_CUDA_ARCHITECTURES="90")
        self.assertEqual(self.configured(), "MUSTER_CUDA_ARCHITECTURES:STRING=90")

    def test_install_refuses_what_cannot_be_built_for(self):
        ran = self.run_here("deploy/dev", "install", "x", MUSTER_CUDA_ARCHITECTURES="70")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("MUSTER_CUDA_ARCHITECTURES=70: expected all, or some of", ran.stderr)

    def test_install_without_nvcc_says_what_is_missing(self):
        ran = self.run_here("deploy/dev", "install", "somewhere", NVCC="CUDAToolkit-NOTFOUND")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("nvcc, is not found: without kernels for GPUs, muster-train trains on CPUs "
                      "alone", ran.stderr)


if __name__ == "__main__":
    unittest.main()
