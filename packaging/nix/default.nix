{
  lib,
  stdenv,
  fetchurl,
  # the CUDA driver, which finds cudart at run time and needs no toolkit
  cudaSupport ? false,
}:

stdenv.mkDerivation (finalAttrs: {
  pname = "devstream";
  version = "0.1.0";

  src = fetchurl {
    url = "@URL@/devstream-${finalAttrs.version}.tar.gz";
    sha256 = "@SHA256@";
  };

  outputs = [
    "out"
    "dev"
    "doc"
    "man"
  ];

  enableParallelBuilding = true;
  makeFlags = [
    "prefix=$(out)"
    "includedir=$(dev)/include"
    "docdir=$(doc)/share/doc/devstream"
    "mandir=$(man)/share/man"
    "CUDA_HOME="
    "NO_INSTALL_DEPS=1"
  ]
  ++ lib.optional cudaSupport "CPPFLAGS=-DDEVSTREAM_CUDA_DLOPEN";
  buildFlags = [ "library" ];

  meta = {
    description = "Streams, events, graphs, memory and collectives on NVIDIA GPUs and on processors";
    homepage = "@URL@";
    license = with lib.licenses; [
      mit
      unlicense
    ];
    # make builds shared libraries of Linux only; for macOS and Windows, CMake does.
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
})
