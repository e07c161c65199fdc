import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"


class DevstreamConan(ConanFile):
    name = "devstream"
    description = "Streams, events, graphs, memory and collectives on NVIDIA GPUs and on processors"
    license = "MIT OR Unlicense"
    url = homepage = "@URL@"
    topics = ("cuda", "streams", "allocator", "collectives", "gpu")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "shared": [True, False],
        "fPIC": [True, False],
        # the CUDA driver, which finds cudart at run time and needs no toolkit
        "cuda": [True, False],
    }
    default_options = {"shared": False, "fPIC": True, "cuda": False}
    implements = ["auto_shared_fpic"]
    languages = "C"

    def layout(self):
        cmake_layout(self, src_folder="src")

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("devstream 0.1 supports Linux on x86_64 and armv8")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["DEVSTREAM_STATIC_LIBRARY"] = not self.options.shared
        toolchain.cache_variables["DEVSTREAM_SHARED_LIBRARY"] = bool(self.options.shared)
        toolchain.cache_variables["DEVSTREAM_CUDA"] = "DLOPEN" if self.options.cuda else "OFF"
        toolchain.cache_variables["DEVSTREAM_TESTS"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        for folder in ("cmake", "pkgconfig"):
            rmdir(self, os.path.join(self.package_folder, "lib", folder))
        rmdir(self, os.path.join(self.package_folder, "share"))

    def package_info(self):
        self.cpp_info.libs = ["devstream"]
        self.cpp_info.system_libs = ["pthread", "dl"]
        self.cpp_info.set_property("cmake_file_name", "devstream")
        self.cpp_info.set_property("cmake_target_name", "devstream::shared" if self.options.shared else "devstream::static")
        self.cpp_info.set_property("cmake_target_aliases", ["devstream::devstream"])
        self.cpp_info.set_property("pkg_config_name", "devstream")
