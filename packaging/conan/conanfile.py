import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"

# Nothing was run on macOS: devstream is compiled and linked for Macos only.
PROCESSORS = {"Linux": ("x86_64", "armv8"), "Macos": ("x86_64", "armv8"), "Windows": ("x86_64",)}


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
        system, processor = str(self.settings.os), str(self.settings.arch)
        if processor not in PROCESSORS.get(system, ()):
            raise ConanInvalidConfiguration(
                f"devstream does not support {system} on {processor}: use Linux or Macos on x86_64 or armv8, or Windows on x86_64"
            )
        # If clang has the setting "runtime", it compiles for the C library of Visual C++.
        compiler = str(self.settings.compiler)
        if system == "Windows" and (compiler not in ("gcc", "clang") or self.settings.get_safe("compiler.runtime")):
            raise ConanInvalidConfiguration(
                f"devstream is not compiled for Windows by {compiler} with the libraries of Visual C++: use gcc or clang with mingw-w64"
            )

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
        # macOS has both in its C library, and Windows neither.
        if self.settings.os == "Linux":
            self.cpp_info.system_libs = ["pthread", "dl"]
        self.cpp_info.set_property("cmake_file_name", "devstream")
        self.cpp_info.set_property("cmake_target_name", "devstream::shared" if self.options.shared else "devstream::static")
        self.cpp_info.set_property("cmake_target_aliases", ["devstream::devstream"])
        self.cpp_info.set_property("pkg_config_name", "devstream")
