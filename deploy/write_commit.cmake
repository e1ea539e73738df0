# cmake -Dout=FILE -Dtree=DIR -P deploy/write_commit.cmake
# Writes FILE, a source that names the commit in DIR; none where the tree differs from it, or without DIR. A file that says
# so already keeps its time, and nothing is compiled again.
set(commit "")
if(tree)
  execute_process(COMMAND git --no-optional-locks status --porcelain WORKING_DIRECTORY ${tree}
                  OUTPUT_VARIABLE changes RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0 AND changes STREQUAL "")
    execute_process(COMMAND git rev-parse HEAD WORKING_DIRECTORY ${tree}
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
file(CONFIGURE OUTPUT ${out} @ONLY CONTENT "namespace muster {
extern const char kBuiltCommit[];
const char kBuiltCommit[] = \"@commit@\";
}  // namespace muster
")
