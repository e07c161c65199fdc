// A program in Zig that uses devstream's package: the module "devstream" of its declarations, and its library.
const std = @import("std");

pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{});
    const optimize = b.standardOptimizeOption(.{});
    const devstream = b.dependency("devstream", .{ .target = target, .optimize = optimize });
    const code = b.createModule(.{ .root_source_file = b.path("main.zig"), .target = target, .optimize = optimize });
    code.addImport("devstream", devstream.module("devstream"));
    const program = b.addExecutable(.{ .name = "main", .root_module = code });
    b.step("run", "Run the program").dependOn(&b.addRunArtifact(program).step);
}
