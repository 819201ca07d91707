from understudy.cli import main

main()
