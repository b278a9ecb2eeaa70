"""Repositories for Debian's Bazel 4.2.3, which has no MODULE.bazel and here no network.

Everything comes from Debian packages: bazel-rules-cc, bazel-rules-java, doctest-dev and
libbenchmark-dev. Bazel 7 and later read MODULE.bazel and need none of this.
"""

_RULES = "/usr/share/bazel/rules"
_HINT = "bazel: {} is missing: install Debian's {}, or use Bazel 7 or later with MODULE.bazel"

def _need(context, path, package):
    if not context.path(path).exists:
        fail(_HINT.format(path, package))
    return path

def _rules_cc(context):
    # Two files of rules_cc 0.0.4 load a symbol that Bazel 4.2.3 lacks, so they are replaced by
    # empty ones. Nothing here uses them.
    rules = context.os.environ.get("NETIO_BAZEL_RULES", _RULES)
    cc = _need(context, rules + "/cc/cc/defs.bzl", "bazel-rules-cc")[:-len("/defs.bzl")]
    native = "private/rules_impl/native.bzl"
    context.symlink(cc + "/defs.bzl", "cc/defs.bzl")
    context.symlink(cc + "/" + native, "cc/" + native)
    for name in ["cc_flags_supplier", "compiler_flag"]:
        context.file("cc/private/rules_impl/{}.bzl".format(name), name + " = None\n")
    for folder in ["", "cc/", "cc/private/", "cc/private/rules_impl/"]:
        context.file(folder + "BUILD.bazel", "")

_debian_rules_cc = repository_rule(
    implementation = _rules_cc,
    environ = ["NETIO_BAZEL_RULES"],
    local = True,
)

def _empty_rules_java(context):
    # Bazel's own tools name rules_java; no target of ours does.
    _need(context, _RULES + "/java", "bazel-rules-java")
    for entry in context.path(_RULES + "/java").readdir():
        context.symlink(entry, entry.basename)

_debian_rules_java = repository_rule(implementation = _empty_rules_java, local = True)

def _coverage_tools(context):
    context.file("BUILD.bazel", """filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
""")

_no_coverage_tools = repository_rule(implementation = _coverage_tools)

def _doctest(context):
    _need(context, "/usr/include/doctest/doctest.h", "doctest-dev")
    context.symlink("/usr/include/doctest", "doctest/include/doctest")
    context.file("BUILD.bazel", "")
    context.file("doctest/BUILD.bazel", """load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "doctest",
    hdrs = ["include/doctest/doctest.h"],
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

_debian_doctest = repository_rule(implementation = _doctest, local = True)

def _benchmark(context):
    _need(context, "/usr/include/benchmark/benchmark.h", "libbenchmark-dev")
    context.file("BUILD.bazel", """load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "benchmark_main",
    linkopts = ["-lbenchmark_main", "-lbenchmark", "-lpthread"],
    visibility = ["//visibility:public"],
)
""")

_debian_benchmark = repository_rule(implementation = _benchmark, local = True)

def debian_repositories():
    """Call this from a WORKSPACE; where MODULE.bazel is read it does nothing."""
    major = native.bazel_version.split(".")[0]
    if major.isdigit() and int(major) >= 7:
        return
    _debian_rules_cc(name = "rules_cc")
    _debian_rules_java(name = "rules_java")
    _no_coverage_tools(name = "remote_coverage_tools")
    _debian_doctest(name = "doctest")
    _debian_benchmark(name = "google_benchmark")
