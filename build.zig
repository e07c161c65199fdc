// Devstream for projects that are built with Zig, 0.14 or newer: `zig fetch --save ARCHIVE`, and in build.zig
//     const devstream = b.dependency("devstream", .{ .target = target, .optimize = optimize });
//     program.linkLibrary(devstream.artifact("devstream"));
// The library has the headers with it, for @cImport and C files. The module "devstream" has the declarations by translate-c.
// Options: -Dlinkage=static|dynamic, -Dcuda (the CUDA driver, which finds cudart at run time).
const std = @import("std");

const headers = [_][]const u8{
    "devstream.h",       "devstream_alloc.h", "devstream_check.h", "devstream_comm.h",
    "devstream_kernel.h", "devstream_ranks.h", "devstream_rng.h",   "devstream_trace.h",
};

pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{});
    const optimize = b.standardOptimizeOption(.{});
    const linkage = b.option(std.builtin.LinkMode, "linkage", "static (default) or dynamic") orelse .static;
    const cuda = b.option(bool, "cuda", "the CUDA driver, which finds cudart at run time") orelse false;

    const code = b.createModule(.{ .target = target, .optimize = optimize, .link_libc = true });
    if (cuda) code.addCMacro("DEVSTREAM_CUDA_DLOPEN", "1");
    if (linkage == .dynamic) code.addCMacro("DEVSTREAM_SHARED", "1");
    code.addCSourceFile(.{ .file = b.path("devstream.c"), .flags = &.{ "-std=c11", "-fvisibility=hidden" } });
    const library = b.addLibrary(.{ .name = "devstream", .linkage = linkage, .root_module = code });
    for (headers) |header| library.installHeader(b.path(header), header);
    b.installArtifact(library);

    const declarations = b.addTranslateC(.{
        .root_source_file = b.addWriteFiles().add("devstream_all.h", includes),
        .target = target,
        .optimize = optimize,
        .link_libc = true,
    });
    declarations.addIncludePath(b.path("."));
    declarations.defineCMacro("DEVSTREAM_NO_SITES", "1");
    const module = declarations.addModule("devstream");
    module.linkLibrary(library);

    const linked = b.createModule(.{ .target = target, .optimize = optimize, .link_libc = true });
    linked.addCSourceFile(.{ .file = b.path("tests/ports/linked.c"), .flags = &.{"-std=c11"} });
    linked.linkLibrary(library);
    const program = b.addExecutable(.{ .name = "linked", .root_module = linked });
    b.step("test", "Run a program that is linked with the library").dependOn(&b.addRunArtifact(program).step);
    b.step("link", "Link this program without running it, for targets that do not run here").dependOn(&program.step);
}

const includes =
    \\#include <devstream_alloc.h>
    \\#include <devstream_comm.h>
    \\#include <devstream_rng.h>
    \\#include <devstream_check.h>
    \\#include <devstream_trace.h>
    \\#include <devstream_ranks.h>
    \\
;
